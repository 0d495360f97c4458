"""What is wrong with a value, in words for the person who wrote it: no regular expressions, and known names listed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[([^\]]*)\]")
_NOT_ONE = "Invalid enum value "
_SHOWN = 12


class Complaint(NamedTuple):
    """``path`` is the place as msgspec writes it (``$.sampling_params.top_p``), ``what`` is wrong there.

    ``unknown`` names the field that should not be there; ``path`` is then that of the object which has it.
    """

    path: str
    what: str
    unknown: str | None = None

    def __str__(self) -> str:
        return self.what if self.path == "$" else f"{self.what} - at `{self.path}`"

    @property
    def place(self) -> str:
        """The field, without the ``$``, for people who do not write JSON: ``server.port``. Empty for the whole."""
        name = f".{self.unknown}" if self.unknown is not None else ""
        return f"{self.path}{name}".removeprefix("$").removeprefix(".")


def complaint(error: msgspec.ValidationError, kind: Any) -> Complaint:
    """What ``error``, raised for a value that should have been a ``kind``, comes to."""
    said, _, path = str(error).partition(" - at `")
    path = path.removesuffix("`") or "$"
    if (unknown := _UNKNOWN.fullmatch(said)) is not None:
        fields = [field.encode_name for each in _at(kind, path) for field in getattr(each, "fields", ())]
        return Complaint(path, f"unknown field `{unknown[1]}`{suggest(unknown[1], fields)}", unknown[1])
    if " matching regex " in said:
        return Complaint(path, _like(kind, path))
    if said.startswith(_NOT_ONE) and (allowed := _choices(kind, path)):
        return Complaint(path, f"{said.removeprefix(_NOT_ONE)} is none of {', '.join(map(repr, allowed))}")
    return Complaint(path, said)


def suggest(name: str, known: Iterable[str]) -> str:
    """``; did you mean `a`?``, or ``; known: a, b, c``."""
    names = list(known)
    if close := difflib.get_close_matches(name, names, n=1):
        return f"; did you mean `{close[0]}`?"
    more = ", ..." if len(names) > _SHOWN else ""
    return f"; known: {', '.join(names[:_SHOWN]) or 'none'}{more}"


def counted(number: int, noun: str) -> str:
    """``1 row``, ``2 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _like(kind: Any, path: str) -> str:
    """How such a text looks, from the examples that its field gives."""
    extras = (each.extra_json_schema or {} for each in _at(kind, path) if isinstance(each, inspect.Metadata))
    examples = [example for extra in extras for example in extra.get("examples", ())]
    return f"must be written like {examples[0]}" if examples else "is not written as it must be"


def _choices(kind: Any, path: str) -> list[Any]:
    """What a field that takes one of a few values takes."""
    literal = [value for each in _at(kind, path) if isinstance(each, inspect.LiteralType) for value in each.values]
    return literal + [one.value for each in _at(kind, path) if isinstance(each, inspect.EnumType) for one in each.cls]


def _at(kind: Any, path: str) -> list[inspect.Type]:
    """The types that a value at ``path`` may have; a ``Metadata`` comes before what it describes."""
    here = _open(inspect.type_info(kind))
    for step in _STEP.finditer(path.removeprefix("$")):
        here = [deeper for each in here for inner in _step(each, step[1], step[2]) for deeper in _open(inner)]
    return here


def _open(kind: inspect.Type) -> list[inspect.Type]:
    if isinstance(kind, inspect.Metadata):
        return [kind, *_open(kind.type)]
    if isinstance(kind, inspect.UnionType):
        return [inner for each in kind.types for inner in _open(each)]
    return [kind]


def _step(kind: inspect.Type, field: str | None, item: str | None) -> list[inspect.Type]:
    if field is not None:
        return [each.type for each in getattr(kind, "fields", ()) if each.encode_name == field]
    if isinstance(kind, inspect.DictType):
        return [kind.value_type]
    if isinstance(kind, inspect.TupleType):
        return [kind.item_types[int(item or 0)]]
    inner = getattr(kind, "item_type", None)
    return [inner] if inner is not None else []
