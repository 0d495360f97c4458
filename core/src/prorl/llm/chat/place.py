"""Where a conversation stands, and points of it that one may come back to."""

from __future__ import annotations

import msgspec

from prorl.api.llm import Message
from prorl.llm.chat.ledger import Stream
from prorl.llm.rendering.textual import Owed


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a conversation stands after one of its turns: what :meth:`ChatSession.fork` goes back to. ``thinking``:
    the model is amidst it; ``reasoned``: there is some in this segment. ``owed``: what an engine that renders itself
    will have appended by its next reply."""

    length: int = 0
    prefix: int = 0
    messages: int = 0
    replies: int = 0
    last_id: int | None = None
    thinking: bool = False
    reasoned: bool = False
    may_reply: bool = False
    may_observe: bool = False
    owed: Owed | None = None


class Bookmark(msgspec.Struct, frozen=True):
    """A point of a stream, also of one that the chat has left since. What it refers to only grows, and is let go of as
    a whole when a new segment begins."""

    stream: Stream
    places: list[Place]
    turns: int
    messages: list[Message]
