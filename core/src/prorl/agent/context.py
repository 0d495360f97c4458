"""Less text for a context that is full: observations cut to what fits, and conversations to what matters most."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from prorl.api.llm import Message

LEFT_OUT = "[The middle of this conversation was left out for want of room. What follows are its latest steps.]"


def shorten(text: str, limit: int) -> str:
    """At most ``limit`` characters: the middle goes, with a line that says how much."""
    if len(text) <= limit:
        return text
    note = f"\n[... {len(text) - limit} characters cut ...]\n"
    half = max(0, limit - len(note)) // 2
    return text[:half] + note + text[len(text) - half :]


def shorten_all(messages: Sequence[Message], chars: int) -> list[Message]:
    """The same messages, about ``chars`` characters in all: the longest results of tools lose their middles."""
    fixed = sum(length_of(message) for message in messages if message.role != "tool")
    limit = _fair_limit([len(message.content) for message in messages if message.role == "tool"], chars - fixed)
    return [
        msgspec.structs.replace(message, content=shorten(message.content, limit)) if message.role == "tool" else message
        for message in messages
    ]


def keep_recent(messages: Sequence[Message], chars: int) -> list[Message]:
    """The opening messages and the last exchanges (a reply with what answered it), about ``chars`` characters in all.

    The last exchange always stays, the results of its tools shortened if they must be. Where something was left out,
    the last opening message says so.
    """
    first = next((index for index, message in enumerate(messages) if message.role == "assistant"), len(messages))
    opening, exchanges = list(messages[:first]), _exchanges(messages[first:])
    if not exchanges:
        return opening
    room = chars - sum(map(length_of, opening))
    kept = [shorten_all(exchanges.pop(), room)]
    room -= sum(map(length_of, kept[0]))
    while exchanges and (size := sum(map(length_of, exchanges[-1]))) <= room:
        kept.insert(0, exchanges.pop())
        room -= size
    if exchanges:
        opening = _with_note(opening)
    return [*opening, *(message for exchange in kept for message in exchange)]


def length_of(message: Message) -> int:
    """Characters of a message, its calls included, as far as they make up its tokens."""
    return len(message.content) + sum(len(msgspec.json.encode(call)) for call in message.tool_calls)


def _exchanges(messages: Sequence[Message]) -> list[list[Message]]:
    exchanges: list[list[Message]] = []
    for message in messages:
        if message.role == "assistant":
            exchanges.append([])
        exchanges[-1].append(message)
    return exchanges


def _with_note(opening: list[Message]) -> list[Message]:
    """In the message before the first reply, since not every template takes two messages of a user in a row."""
    if not opening or opening[-1].role != "user":
        return [*opening, Message(role="user", content=LEFT_OUT)]
    last = opening[-1]
    if last.content.endswith(LEFT_OUT):
        return opening
    return [*opening[:-1], msgspec.structs.replace(last, content=f"{last.content}\n\n{LEFT_OUT}")]


def _fair_limit(lengths: Sequence[int], chars: int) -> int:
    """The most that each text may have, so that all have ``chars`` together and the short ones stay whole."""
    left = max(0, chars)
    ordered = sorted(lengths)
    for index, length in enumerate(ordered):
        share = left // (len(ordered) - index)
        if length > share:
            return share
        left -= length
    return max(ordered, default=0)
