"""Where a call goes on: the chats of one job, and the points of their streams.

A call that goes on where a chat stands uses that chat; one that goes on from an earlier point, or from one that is busy
just now, takes a branch; one that goes on from nothing opens a chat of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from prorl.api.llm import Chat
from prorl.capture.samples import Sample
from prorl.capture.talk import Asked, Heard, Marks, to_messages
from prorl.capture.trace import Prompt


class Line:
    """A chat, and the point where it stands. For one call at a time."""

    def __init__(self, chat: Chat) -> None:
        self.chat = chat
        self.busy = True
        self.place: Place | None = None

    def stand(self) -> Place:
        """Where the chat stands now."""
        self.place = Place(self, self.chat.bookmark(), time.monotonic())
        return self.place


class Place:
    """A point of a stream. ``since``: when it was reached (monotonic)."""

    def __init__(self, line: Line, mark: Any, since: float) -> None:
        self.line = line
        self.mark = mark
        self.since = since


class Streams:
    """``chat(agent)`` makes a chat of the job. Counts ``conversations`` and ``branches``."""

    def __init__(self, chat: Callable[[str], Chat], counts: Counter[str]) -> None:
        self._chat = chat
        self._counts = counts
        self._leading: dict[tuple[int, bytes], asyncio.Lock] = {}

    async def stand_at(
        self, prompt: Prompt[Place, Sample], messages: tuple[Heard, ...], asked: Asked, marks: Marks
    ) -> Line:
        """A chat that stands at the prompt, marked busy. Several samples of a new prompt: one of them leads there."""
        async with self._leading.setdefault(prompt.key, asyncio.Lock()):
            if prompt.place is None:
                prompt.place = await self._advance(prompt, messages, asked, marks)
            return self._take(prompt.place)

    def forget(self, prompt: Prompt[Place, Sample]) -> None:
        self._leading.pop(prompt.key, None)

    async def _advance(
        self, prompt: Prompt[Place, Sample], messages: tuple[Heard, ...], asked: Asked, marks: Marks
    ) -> Place:
        new = to_messages(prompt.new, asked.tools, among=messages)
        if prompt.after is None:
            self._counts["conversations"] += 1
            line = Line(self._chat(marks.agent))
            await line.chat.open(new, asked.tools)
        else:
            line = self._take(prompt.after.place)
        try:
            if prompt.after is not None:
                await line.chat.observe(new, ms=(time.monotonic() - prompt.after.place.since) * 1000)
            return line.stand()
        finally:
            line.busy = False

    def _take(self, place: Place) -> Line:
        line = place.line
        if line.busy or line.place is not place:
            self._counts["branches"] += 1
            line = Line(line.chat.fork(at=place.mark))
            # If nothing comes of this call, the next one finds the branch here: a branch stands in the trajectory.
            line.place, place.line = place, line
        line.busy = True
        return line
