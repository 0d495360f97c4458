"""The tree of a job's conversations: from a whole conversation to the place where it goes on.

::

    Prompt ── a point where the policy was to speak: everything before it is on a token stream
      └─ Spoken ── one reply to it (several: deliberate samples of one prompt)
           └─ Prompt ── what the agent said next

A client sends its conversation back in its own words: content as text or in parts, arguments spaced anew, ids
rewritten, reasoning left out, white space trimmed. So messages are compared in a canonical form, which is used for
nothing else: the tokens of what matched are those on the stream. What follows the last assistant message is new; that
message, with all before it, must be one of ours, or else the conversation is another one.

Places are whatever the caller says where a conversation stands; nothing here looks at them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from prorl.api.llm import ToolSchema
from prorl.capture.talk import Called, Heard

P = TypeVar("P")
S = TypeVar("S")


class Prompt(Generic[P, S]):
    """``place`` is ``None`` until the conversation stands there. ``after`` is the reply that it goes on from (``None``:
    it begins here) and ``new`` what comes behind that; ``samples`` is the caller's."""

    def __init__(
        self, key: tuple[int, bytes], after: Spoken[P, S] | None, new: tuple[Heard, ...], chain: bytes
    ) -> None:
        self.key = key
        self.chain = chain
        self.after = after
        self.new = new
        self.place: P | None = None
        self.samples: list[S] = []


class Spoken(Generic[P, S]):
    """A reply of ours, with the place behind it."""

    def __init__(self, number: int, prompt: Prompt[P, S], message: Heard, place: P) -> None:
        self.number = number
        self.prompt = prompt
        self.message = message
        self.place = place

    def conversation(self) -> tuple[Heard, ...]:
        """From its beginning up to this reply. No reply keeps a copy of what stands before it."""
        parts: list[tuple[Heard, ...]] = []
        at: Spoken[P, S] | None = self
        while at is not None:
            parts.append((*at.prompt.new, at.message))
            at = at.prompt.after
        return tuple(message for part in reversed(parts) for message in part)


class Trace(Generic[P, S]):
    """All conversations of one job."""

    def __init__(self) -> None:
        self._prompts: dict[tuple[int, bytes], Prompt[P, S]] = {}
        self._spoken: dict[bytes, list[Spoken[P, S]]] = {}
        self._count = 0

    def find(self, messages: Sequence[Heard], tools: Sequence[ToolSchema] = ()) -> Prompt[P, S]:
        """The prompt that this conversation is at, made if it is new. The last message must not be an assistant's."""
        chain = list(_chain(messages, tools))
        last = max((i for i, message in enumerate(messages) if message.role == "assistant"), default=-1)
        after = None if last < 0 else self._closest(chain[last], messages[last].calls)
        new = tuple(messages if after is None else messages[last + 1 :])
        # Two replies alike in every word are told apart by their calls' ids, and so is what follows them.
        key = (0 if after is None else after.number, chain[-1])
        prompt = self._prompts.get(key)
        if prompt is None:
            prompt = self._prompts[key] = Prompt(key, after, new, chain[-1])
        return prompt

    def say(self, prompt: Prompt[P, S], message: Heard, place: P) -> Spoken[P, S]:
        """Remember a reply as it was sent to the client."""
        self._count += 1
        spoken = Spoken(self._count, prompt, message, place)
        self._spoken.setdefault(_link(prompt.chain, message), []).append(spoken)
        return spoken

    def forget(self, prompt: Prompt[P, S]) -> None:
        """A prompt that came to nothing."""
        self._prompts.pop(prompt.key, None)

    def _closest(self, key: bytes, calls: Sequence[Called]) -> Spoken[P, S] | None:
        alike = self._spoken.get(key, [])
        ids = [call.id for call in calls]
        same = [spoken for spoken in alike if ids and [call.id for call in spoken.message.calls] == ids]
        return next(reversed(same or alike), None)


def _chain(messages: Sequence[Heard], tools: Sequence[ToolSchema]) -> Iterator[bytes]:
    """For every message a digest of the conversation up to it, in one pass."""
    key = hashlib.blake2b(_plain([[t.name, t.description, t.parameters] for t in tools]), digest_size=16).digest()
    for message in messages:
        key = _link(key, message)
        yield key


def _link(key: bytes, message: Heard) -> bytes:
    calls = [[call.name, canonical_arguments(call.arguments)] for call in message.calls]
    said = _plain([message.role, message.text.strip(), calls])
    return hashlib.blake2b(key + said, digest_size=16).digest()


def canonical_arguments(text: str) -> Any:
    """Arguments whatever their spacing and order; JavaScript writes 1.0 as 1. What is no JSON stays as it is."""
    try:
        return json.loads(text.strip() or "{}", parse_float=_number)
    except (ValueError, RecursionError):
        return text.strip()


def _number(digits: str) -> float | int:
    value = float(digits)
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _plain(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, default=dict, separators=(",", ":")).encode()
