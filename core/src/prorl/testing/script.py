"""What a script is asked, and what it says: the words between a scripted engine and its policy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec


class ScriptedRequest(msgspec.Struct, kw_only=True):
    """One request for a reply. ``prompt`` is decoded with its control tokens; ``call`` counts, from 0, the replies that
    this conversation has had from this engine; ``sampling`` holds the parameters as they were sent."""

    prompt_ids: list[int]
    prompt: str
    call: int
    request_id: str
    sampling: dict[str, Any]


class ScriptedReply(msgspec.Struct, kw_only=True):
    """What to say. Control tokens in ``text`` become tokens; ``token_ids`` is taken instead where given. With ``end``
    the end-of-turn token follows. ``logprobs`` are per token, that one included."""

    text: str = ""
    token_ids: list[int] | None = None
    end: bool = True
    logprobs: list[float] | None = None
    delay_s: float = 0.0


class Played(msgspec.Struct, kw_only=True):
    """A reply as it goes out. ``versions`` are ``(name, start, end)``."""

    token_ids: list[int]
    logprobs: list[float]
    finish: str
    stop_reason: int | None
    versions: list[tuple[str, int, int]]


Said = str | ScriptedReply
Policy = Callable[[ScriptedRequest], Said | Awaitable[Said]]
