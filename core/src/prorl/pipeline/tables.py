"""Tables of settings: one laid over another, and checked against the Struct that describes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from prorl.api.errors import ConfigError
from prorl.wire.wording import complaint, suggest

S = TypeVar("S", bound=msgspec.Struct)


def overlay(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` laid over ``base``: tables are merged, everything else is replaced. Neither is changed."""
    merged = dict(base)
    for name, value in over.items():
        below = merged.get(name)
        merged[name] = overlay(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def convert_table(table: Mapping[str, Any], kind: type[S], *, where: str) -> S:
    """``table`` as a ``kind``, strictly; unknown keys are errors even where ``kind`` would let them pass.

    Raises ``ConfigError`` that begins with ``where`` and names the field.
    """
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    for name in table:
        if name not in known:
            raise ConfigError(f"{where}: unknown field {name!r}{suggest(name, known)}")
    try:
        return msgspec.convert(dict(table), kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {complaint(error, kind)}") from error
