"""From a row of verl's data set to a task instance that can travel as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

# What verl adds to a row on its way to the agent loop.
_VERLS_OWN = (
    *("raw_prompt", "dummy_tensor", "uid", "session_id", "global_steps", "priority", "index"),
    *("tools_kwargs", "interaction_kwargs"),
)


def instance_of(
    row: Mapping[str, Any], *, prompt_key: str, fields: Sequence[str] | None, whole: str | None
) -> dict[str, Any]:
    """The instance: the field ``whole``, or ``fields``, or everything that is not verl's own.

    Raises ``ValueError`` for a field that is not there, ``TypeError`` for one that is no JSON.
    """
    if whole is not None:
        value = plain(_field(row, whole), whole)
        instance = msgspec.json.decode(value) if isinstance(value, str) else value
        if not isinstance(instance, dict):
            raise TypeError(f"the row's field {whole!r} must be a mapping, or one as JSON text")
        return instance
    if fields is not None:
        return {name: plain(_field(row, name), name) for name in fields}
    instance = {name: plain(value, name) for name, value in row.items() if name not in _VERLS_OWN}
    if prompt_key not in instance and "raw_prompt" in row:
        instance[prompt_key] = plain(row["raw_prompt"], "raw_prompt")
    return instance


def plain(value: Any, where: str) -> Any:
    """``value`` of builtin types only: arrays as lists, numpy's numbers as Python's, configuration nodes as dicts."""
    if isinstance(value, float) and not math.isfinite(value):
        raise TypeError(f"the row's field {where!r} is {value}, which JSON cannot say")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if hasattr(value, "tolist"):
        return plain(value.tolist(), where)
    if isinstance(value, Mapping):
        return {str(name): plain(part, f"{where}.{name}") for name, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | str):
        return [plain(part, where) for part in value]
    raise TypeError(
        f"the row's field {where!r} is a {type(value).__name__}, which no rollout server can read: leave the column "
        "out, or name the fields to send (fields: [...] in the agent loop's YAML)"
    )


def _field(row: Mapping[str, Any], name: str) -> Any:
    if name not in row:
        raise ValueError(f"the row has no field {name!r}; it has: {', '.join(sorted(row))}")
    return row[name]
