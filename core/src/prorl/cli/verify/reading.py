"""Results from a file, one at a time: JSON lines (what ``prorl rollout`` writes), one JSON document, or msgpack.

What cannot be read is an item too, so that the rest of a file is still looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec

from prorl.api.errors import ConfigError
from prorl.wire import RolloutResult

_MSGPACK = (".msgpack", ".mpk")
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One result, or what is ``wrong`` with it. ``line`` counts from 1; in a file that is one document, it is the place
    in its list. ``end`` is where it ends in the file, in bytes."""

    line: int
    end: int
    result: RolloutResult | None = None
    wrong: str = ""


class _View(msgspec.Struct):
    """A job as ``GET /jobs/{id}`` shows it."""

    result: RolloutResult


class _Decode(Protocol):
    def __call__(self, data: bytes, /, *, type: Any) -> Any: ...


def read_results(path: Path) -> Iterator[Item]:
    """Raises ``ConfigError`` for a file that cannot be opened, is empty, or cannot be read more than once."""
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is no file: results are read more than once, so put them into a file")
    try:
        with path.open("rb") as file:
            first = file.readline()
            if not first:
                raise ConfigError(f"{path} is empty")
            if path.suffix in _MSGPACK:
                yield from _document(first + file.read(), msgspec.msgpack.decode)
            elif not _is_object(first) and _is_json(whole := first + file.read()):
                yield from _document(whole, msgspec.json.decode)
            else:
                file.seek(0)
                yield from _lines(file)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error


def _lines(lines: Iterator[bytes]) -> Iterator[Item]:
    end = 0
    for number, line in enumerate(lines, start=1):
        end += len(line)
        if not line.isspace():
            hint = "" if line.endswith(b"\n") else " (the line has no end: the file may have been cut off)"
            yield _item(line, msgspec.json.decode, number, end, hint)


def _document(data: bytes, decode: _Decode) -> Iterator[Item]:
    """One result, or a list of them."""
    try:
        parts = decode(data, type=list[msgspec.Raw])
    except msgspec.ValidationError:
        parts = [data]
    except _UNREADABLE as error:
        yield Item(line=1, end=len(data), wrong=str(error))
        return
    end = 0
    for number, part in enumerate(parts, start=1):
        end += len(part)
        yield _item(part, decode, number, end)


def _item(data: bytes, decode: _Decode, line: int, end: int, hint: str = "") -> Item:
    try:
        try:
            result = decode(data, type=RolloutResult)
        except msgspec.ValidationError as error:
            try:
                result = decode(data, type=_View).result
            except msgspec.ValidationError:
                raise error from None
    except _UNREADABLE as error:
        return Item(line=line, end=end, wrong=f"{error}{hint}")
    return Item(line=line, end=end, result=result)


def _is_object(line: bytes) -> bool:
    return line.lstrip().startswith(b"{") and _is_json(line)


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except _UNREADABLE:
        return False
    return True
