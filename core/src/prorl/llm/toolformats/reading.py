"""Reading one reply: a single pass that tells thinking, answer and calls apart.

A format says where a call may begin and reads it from there; the rest is the same for all. A call that is wrong becomes
a :class:`~prorl.wire.trajectory.ToolCall` whose ``error`` tells the model what to mend.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from prorl.llm.toolformats.base import ParsedReply
from prorl.llm.toolformats.values import MOST_DEPTH, depth_of
from prorl.wire.trajectory import ToolCall

# Also what keeps reading linear: an attempt may cost a look over the whole text.
MOST_CALLS = 64
_THINK = ("<think>", "</think>")


class Read(NamedTuple):
    """The calls that stood at an opener, and where reading goes on."""

    calls: list[ToolCall]
    end: int


Reader = Callable[[str, "re.Match[str]"], Read | None]


def opening(pattern: str) -> re.Pattern[str]:
    """What :func:`read_reply` looks for: thinking's tags, and whatever may begin a call."""
    return re.compile(rf"</?think>|{pattern}", re.MULTILINE)


def read_reply(text: str, openers: re.Pattern[str], read: Reader, *, how: str, thinking: bool) -> ParsedReply:
    """``read`` is given every opener outside thinking; ``None`` from it says that this is no call, but text."""
    answer: list[str] = []
    reasoning: list[str] = []
    content: list[str] = []
    calls: list[ToolCall] = []
    at = mark = attempts = 0
    tagged = drafted = False
    while (found := openers.search(text, at)) is not None:
        start, at = found.span()
        if found[0] in _THINK:
            before, mark = text[mark:start], at
            closes = found[0] == "</think>"
            content.append(before + found[0])
            if closes and not tagged:  # the thinking was opened by a prompt we do not know of
                answer, calls, content, reasoning = [], [], [text[:at]], [text[:start]]
            elif thinking:
                reasoning.append(before if closes else before + found[0])
            else:
                answer.append(before + found[0] if closes else before)
            thinking, tagged, drafted = not closes, True, False
            continue
        if thinking:
            drafted = True  # a call drafted while thinking was not made
            continue
        if attempts >= MOST_CALLS:
            if not calls:
                continue  # nothing here was a call
            calls.append(broken(f"only {MOST_CALLS} calls are read in one reply, the rest was left out", how))
            answer.append(text[mark:start])
            content.append(text[mark:])
            mark = len(text)
            break
        attempts += 1
        if (made := read(text, found)) is None:
            continue
        answer.append(text[mark:start])
        unreadable = all(call.error is not None for call in made.calls)
        content.append(text[mark : made.end] if unreadable else text[mark:start])
        calls += made.calls
        at = mark = made.end
    (reasoning if thinking else answer).append(text[mark:])
    content.append(text[mark:])
    if thinking and drafted:
        calls.append(broken("a call inside thinking is not made: close the thinking with </think> first", how))
    said = "".join(content)
    return ParsedReply(
        answer="".join(answer).strip(),
        tool_calls=calls,
        reasoning="".join(reasoning).strip(),
        content=said.rstrip() if calls else said,
        thinking=thinking,
    )


def to_call(name: Any, arguments: Any, how: str) -> ToolCall:
    """A call from what was read, or what is wrong with it."""
    if not usable_name(name):
        return broken("the call has no name of a tool", how)
    if not isinstance(arguments, dict):
        return broken("the arguments must be an object of names and values", how, name)
    if depth_of(arguments) > MOST_DEPTH:
        return broken("the arguments are nested too deeply", how, name)
    call = ToolCall(name=name, arguments=arguments)
    try:  # what cannot travel (lone surrogates, integers beyond 64 bits) is the model's mistake too
        msgspec.msgpack.encode(call)
    except (ValueError, OverflowError, RecursionError) as error:
        return broken(f"the call holds a value that cannot be used ({type(error).__name__})", how)
    return call


def checked(call: ToolCall, how: str) -> ToolCall:
    """A call that somebody else has read, an engine's own parser."""
    return call if call.error is not None else to_call(call.name, call.arguments, how)


def broken(what: str, how: str, name: Any = "") -> ToolCall:
    return ToolCall(name=name if usable_name(name) else "", error=f"{what}; {how}")


def usable_name(name: Any) -> bool:
    return isinstance(name, str) and bool(name) and name.isprintable()
