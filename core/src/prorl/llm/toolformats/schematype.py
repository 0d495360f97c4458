"""What a value written as plain text is, by the JSON schema of the tool that it was written for.

A value that does not fit its type stays the text that it is: the tool's own check then says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prorl.llm.toolformats.values import SPACE, decode_json, literal, parse_python

_MOST_NESTED = 8
_MOST_PYTHON = 20_000
_KINDS: tuple[tuple[type, set[str]], ...] = (
    (bool, {"boolean"}),  # before int, which it is to Python
    (int, {"integer", "number"}),
    (float, {"number"}),
    (list, {"array"}),
    (dict, {"object"}),
)
_PYTHON_WORDS = {"True": True, "False": False, "None": None}


def typed(text: str, parameter: str, schema: Mapping[str, Any] | None) -> Any:
    """The value of one parameter. ``schema`` is that of the tool's parameters, ``None`` for an unknown tool."""
    properties = (schema or {}).get("properties")
    own = properties.get(parameter) if isinstance(properties, Mapping) else None
    kinds = _kinds(own, schema or {}, 0)
    if not kinds - {"string"}:
        return text
    value = _value(text, kinds)
    return text if value is _NONE_OF_THEM else value


def _value(text: str, kinds: set[str]) -> Any:
    bare = text.strip(SPACE)
    if bare in _PYTHON_WORDS:
        value = _PYTHON_WORDS[bare]
        return value if _kind(value) & kinds else _NONE_OF_THEM
    try:
        value, end = decode_json(bare)
        fits = end == len(bare)
    except ValueError:
        fits = False
    if not fits and bare[:1] in ("[", "{") and len(bare) <= _MOST_PYTHON and bare.count("[") + bare.count("{") <= 64:
        try:
            value, fits = literal(parse_python(bare)), True
        except ValueError:
            return _NONE_OF_THEM
    if not fits:
        return _NONE_OF_THEM
    if isinstance(value, float) and value.is_integer() and "number" not in kinds and "integer" in kinds:
        value = int(value)
    return value if _kind(value) & kinds else _NONE_OF_THEM


def _kind(value: Any) -> set[str]:
    """JSON schema's words for the type of a value, without ``string``: text needs no reading."""
    if value is None:
        return {"null"}
    return next((kinds for kind, kinds in _KINDS if isinstance(value, kind)), set())


def _kinds(schema: Any, root: Mapping[str, Any], depth: int) -> set[str]:
    """All types that a schema admits; none at all for one that does not say."""
    if not isinstance(schema, Mapping) or depth > _MOST_NESTED:
        return set()
    kinds: set[str] = set()
    given = schema.get("type")
    kinds.update([given] if isinstance(given, str) else [kind for kind in given or () if isinstance(kind, str)])
    for key in ("anyOf", "oneOf", "allOf"):
        for branch in schema.get(key) or ():
            kinds |= _kinds(branch, root, depth + 1)
    for value in [*(schema.get("enum") or ()), *([schema["const"]] if "const" in schema else ())]:
        if "type" not in schema:
            kinds |= _kind(value) or {"string"}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        target: Any = root
        for step in reference[2:].split("/"):
            target = target.get(step) if isinstance(target, Mapping) else None
        kinds |= _kinds(target, root, depth + 1)
    return kinds


_NONE_OF_THEM = object()
