"""Values that a model wrote, as JSON or as Python literals: read, never evaluated, of bounded depth."""

from __future__ import annotations

import ast
import json
import math
import warnings
from typing import Any, NoReturn

MOST_DEPTH = 64
_QUOTED = 60


def decode_json(text: str, start: int = 0) -> tuple[Any, int]:
    """The JSON value that begins at ``start``, after white space, and where it ends. Raises ``ValueError`` with words
    for the model. Stricter than :mod:`json`: no NaN, no infinite number, no key twice in one object."""
    while start < len(text) and text[start] in SPACE:
        start += 1
    try:
        return _JSON.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at character {error.pos - start} of the call") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def depth_of(value: Any) -> int:
    """How deep lists and dicts are nested in it; 0 for a plain value."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return depth


def parse_python(source: str) -> ast.expr:
    """A Python expression as a tree. Raises ``ValueError``. Bound the depth of its brackets first: the parser's time is
    linear for text that is nested a little only."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape in a model's string is no business of our log's
            return ast.parse(source, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{shown(error.msg)} in line {error.lineno or 1}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ValueError("it cannot be read as Python") from error


def literal(node: ast.expr) -> Any:
    """The value of a literal of plain data, or ``ValueError``. JSON's ``true``, ``false`` and ``null`` count."""
    match node:
        case ast.Constant(value=value) if value is None or isinstance(value, bool | int | float | str):
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError("a number is too large")
            return value
        case ast.Name(id="true" | "false" | "null" as word):
            return {"true": True, "false": False, "null": None}[word]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=ast.Constant(value=value)) if isinstance(
            value, int | float
        ) and not isinstance(value, bool):
            return -value if isinstance(sign, ast.USub) else value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [literal(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return _table(keys, values)
    raise ValueError(f"{type(node).__name__} is not a literal value")


def _table(keys: list[ast.expr | None], values: list[ast.expr]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in zip(keys, values, strict=True):
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
            raise ValueError("the keys of a dict must be strings")  # noqa: TRY004 - for the model
        if key.value in table:
            raise ValueError(f"{shown(key.value)} stands twice")
        table[key.value] = literal(value)
    return table


def shown(text: str) -> str:
    """A model's own words in a message to it."""
    return repr(text if len(text) <= _QUOTED else text[:_QUOTED] + "...")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"{shown(twice)} stands twice in one object")
    return table


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        raise ValueError("a number is too large")
    return value


SPACE = " \t\r\n"
_JSON = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_once)
