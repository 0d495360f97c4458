"""Bodies of strangers' clients: what is known is checked strictly, what is unknown is let pass and named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, TypeVar

import msgspec

from prorl.api.llm import ToolSchema
from prorl.capture.talk import Called, Refusal
from prorl.wire.wording import complaint

T = TypeVar("T", bound=msgspec.Struct)


class Part(msgspec.Struct):
    """A part of a message's content; what else stands in it depends on its type."""

    type: str
    text: str | None = None


Content = str | list[Part] | None


def decode(raw: bytes, kind: type[T]) -> tuple[T, dict[str, Any]]:
    """A body as a ``kind``, and as it came. Raises :class:`Refusal`."""
    try:
        given = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal("invalid", f"the body is not valid JSON: {error}") from None
    if not isinstance(given, dict):
        raise Refusal("invalid", "the body must be a JSON object")
    return convert(given, kind), given


def convert(given: Any, kind: type[T], *, at: str = "") -> T:
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        said = complaint(error, kind)
        field = f"{at}.{said.place}".strip(".") if said.place else at
        raise Refusal("invalid", f"{field}: {said.what}" if field else str(said), field=field or None) from None


def refuse(field: str, why: str) -> NoReturn:
    raise Refusal("invalid", f"{field}: {why}", field=field)


def text_of(content: Content, at: str, *, known: Iterable[str] = ("text",)) -> str:
    """The text of a content in either form. Raises :class:`Refusal` for a part that is no text."""
    if content is None or isinstance(content, str):
        return content or ""
    for number, part in enumerate(content):
        if part.type not in known:
            refuse(f"{at}[{number}].type", f"{part.type!r} is not supported: this policy reads text")
    return "\n".join(part.text or "" for part in content)


def tool_schema(name: str, description: str | None, parameters: Mapping[str, Any] | None) -> ToolSchema:
    return ToolSchema(
        name=name, description=description or "", parameters=parameters or {"type": "object", "properties": {}}
    )


def only(given: Mapping[str, Any], field: str, *allowed: Any, why: str) -> None:
    """Refuse a field that asks for what is not done here, unless it asks for what is done anyway."""
    value = given.get(field)
    if value is not None and value not in allowed:
        refuse(field, why)


def ignored(given: Mapping[str, Any], *used: str) -> tuple[str, ...]:
    """Fields without effect. ``null`` asks for nothing."""
    return tuple(sorted(name[:100] for name, value in given.items() if name not in used and value is not None))


def bare(call: Called, prefix: str) -> Called:
    """A call with its id as we made it, if we did."""
    return msgspec.structs.replace(call, id=call.id.removeprefix(prefix))


def dump(value: Any) -> bytes:
    return msgspec.json.encode(value)


def event(data: Any, name: str | None = None) -> bytes:
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + (data if isinstance(data, bytes) else dump(data)) + b"\n\n"


def pieces(text: str, size: int = 64) -> list[str]:
    """A text as it may come in a stream."""
    return [text[at : at + size] for at in range(0, len(text), size)]
