"""From a row of verl's data set to a task instance that can travel as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

# What verl adds to a row on its way to the agent loop.
_VERLS_OWN = (
    *("raw_prompt", "dummy_tensor", "uid", "session_id", "global_steps", "priority", "index"),
    *("tools_kwargs", "interaction_kwargs"),
)


def instance_of(row: Mapping[str, Any], *, prompt_key: str, whole: str | None) -> dict[str, Any]:
    """The instance: the field ``whole``, or everything that is not verl's own.

    Raises ``ValueError`` for a field that is not there, ``TypeError`` for one that is no JSON.
    """
    if whole is None:
        instance = {name: plain(value, name) for name, value in row.items() if name not in _VERLS_OWN}
        if "raw_prompt" in row:
            instance.setdefault(prompt_key, plain(row["raw_prompt"], "raw_prompt"))
        return instance
    if whole not in row:
        raise ValueError(f"the row has no field {whole!r}; it has: {', '.join(sorted(row))}")
    instance = json.loads(row[whole]) if isinstance(row[whole], str) else plain(row[whole], whole)
    if not isinstance(instance, dict):
        raise TypeError(f"the row's field {whole!r} must be a mapping, or one as JSON text")
    return instance


def plain(value: Any, where: str) -> Any:
    """``value`` of builtin types only: arrays as lists, numpy's numbers as Python's, configuration nodes as dicts."""
    try:
        return json.loads(json.dumps(value, default=_builtin, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{where!r} cannot travel as JSON ({error}): leave it out") from error


def _builtin(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return list(value)
    raise TypeError(f"it holds a {type(value).__name__}")
