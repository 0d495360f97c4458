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


class Asked(msgspec.Struct, kw_only=True):
    """A request for a reply, whichever dialect it was made in. ``detail`` is the dialect's own."""

    prompt_ids: list[int]
    max_tokens: int
    stop_token_ids: list[int]
    request_id: str
    sampling: dict[str, Any]
    detail: Any = None


class Played(msgspec.Struct, kw_only=True):
    """A reply as it goes out. ``named`` are the ids that the logprobs are of, ``echo`` the prompt that is echoed,
    ``read`` how many of its tokens were read; ``versions`` are ``(name, start, end)``."""

    token_ids: list[Any]
    logprobs: list[float | None]
    finish: str
    stop_reason: int | None
    versions: list[tuple[str, int, int]]
    named: list[Any]
    echo: list[int]
    read: int


Said = str | ScriptedReply
Policy = Callable[[ScriptedRequest], Said | Awaitable[Said]]
