"""What all three APIs come down to: what an agent asks, what it is answered, and how it is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from prorl.api.llm import Message, Role, ToolSchema
from prorl.wire.trajectory import Finish, ToolCall

LONGEST_REFUSAL = 2_000
Kind = Literal["invalid", "unauthorized", "forbidden", "unknown", "too_large", "context", "unavailable", "broken"]
STATUS: dict[Kind, int] = {
    "invalid": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "unknown": 404,
    "too_large": 413,
    "context": 400,
    "unavailable": 503,
    "broken": 500,
}


class Refusal(Exception):  # noqa: N818 - an answer, in each API's own form
    """A call that is not served. ``field`` names what is wrong in the body (``messages[2].content[0].type``)."""

    def __init__(self, kind: Kind, message: str, *, field: str | None = None, code: str | None = None) -> None:
        if len(message) > LONGEST_REFUSAL:  # the client's own words may stand in it
            message = f"{message[:LONGEST_REFUSAL]} [...]"
        super().__init__(message)
        self.kind = kind
        self.status = STATUS[kind]
        self.message = message
        self.field = field
        self.code = code


class Called(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call as it travels: ``arguments`` is JSON text, ``id`` is without an API's prefix."""

    id: str
    name: str
    arguments: str


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a conversation as a client sends it, whatever its API. ``call_id`` is a tool result's."""

    role: Role
    text: str
    calls: tuple[Called, ...] = ()
    call_id: str | None = None


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One model call. ``ignored`` names fields that have no effect here; ``wants`` are those that shape the answer's
    form (``stream``, ``usage``, ``thinking``, ``no_calls``) or
    keep it to be gone on from (``kept``). ``follows`` is the id of an answer that ``messages`` go on from, after
    which the conversation is ``lead`` (the system's messages), the earlier one's rest, and ``messages``."""

    model: str
    messages: tuple[Heard, ...]
    tools: tuple[ToolSchema, ...] = ()
    max_tokens: int | None = None
    wants: frozenset[str] = frozenset()
    ignored: tuple[str, ...] = ()
    follows: str | None = None


class Marks(msgspec.Struct, frozen=True, kw_only=True):
    """What the headers say of a call. ``retry``: the client has sent it before; ``first``: it says that it has not.
    ``sample`` tells deliberate samples of one prompt apart; ``agent`` names a sub-agent."""

    retry: bool = False
    first: bool = False
    idempotency_key: str | None = None
    sample: str = ""
    agent: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One reply. ``id`` is the bare one (hex); ``created`` in seconds since 1970."""

    id: str
    created: int
    text: str
    reasoning: str
    calls: tuple[Called, ...]
    finish: Finish
    prompt_tokens: int
    tokens: int


def to_messages(heard: Sequence[Heard], tools: Sequence[ToolSchema], *, among: Sequence[Heard]) -> list[Message]:
    """For the chat. A tool result is given the name of the tool that it answers, found ``among`` the calls of the
    conversation, if that is one that was declared: a template may print names as they are."""
    declared = {tool.name for tool in tools}
    names = {call.id: call.name for message in among for call in message.calls if call.name in declared}
    return [
        Message(
            role=message.role,
            content=message.text,
            name=names.get(message.call_id or "") if message.role == "tool" else None,
            tool_calls=tuple(ToolCall(name=call.name, arguments=arguments_of(call)) for call in message.calls),
            tool_call_id=message.call_id,
        )
        for message in heard
    ]


def arguments_of(call: Called) -> dict[str, object]:
    """A call's arguments as an object; what is none (a client may send anything) stands under one name."""
    try:
        value = msgspec.json.decode(call.arguments or "{}")
    except msgspec.DecodeError:
        value = call.arguments
    return value if isinstance(value, dict) else {"arguments": value}
