"""Names of what plugins offer, as types: a setting of such a type is looked up when it is read, not when it is used."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

NAMES: Final = "prorl_names"

ToolName = Annotated[str, msgspec.Meta(description="a tool, by name or alias", extra={NAMES: "tool"})]
RuntimeName = Annotated[str, msgspec.Meta(description="a sandbox runtime", extra={NAMES: "runtime"})]


def named_in(settings: msgspec.Struct) -> list[tuple[str, str, str]]:
    """``(field, "tool" or "runtime", name)`` for all that a Struct's own fields name, alone or in a tuple."""
    info = msgspec.inspect.type_info(type(settings))
    fields = info.fields if isinstance(info, msgspec.inspect.StructType) else ()
    found = []
    for field in fields:
        said = getattr(settings, field.name)
        names = [said] if isinstance(said, str) else said if isinstance(said, tuple) else ()
        found += [(field.encode_name, kind, name) for kind in _kinds(field.type) for name in names]
    return found


def _kinds(of: Any) -> set[str]:
    match of:
        case msgspec.inspect.Metadata():
            return {of.extra[NAMES]} if of.extra and NAMES in of.extra else _kinds(of.type)
        case msgspec.inspect.UnionType():
            return {kind for each in of.types for kind in _kinds(each)}
        case msgspec.inspect.VarTupleType():
            return _kinds(of.item_type)
    return set()
