"""A job's events: a short log that watchers read at their own pace.

Nothing is ever sent *to* a watcher. It keeps its place (a sequence number) and reads on when woken, so a slow one costs
the job nothing; what the log had to drop meanwhile shows as a gap in ``seq``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any

import msgspec

from prorl.pipeline.faults import trim
from prorl.wire.results import JobEvent

DATA_LIMIT = 16_384
_encoder = msgspec.json.Encoder()  # not msgpack: a handler's data may hold integers beyond 64 bits


Data = dict[str, Any]
Event = tuple[int, str, float, Data]  # seq, kind, at_s, data
_decoder = msgspec.json.Decoder(list[Event])


class EventLog:
    """Bounded; ``at_s`` counts from its making. Once closed it is a single string of bytes: thousands of
    finished jobs are kept, and the garbage collector would walk through all their events."""

    __slots__ = ("_events", "_keep", "_loop", "_packed", "_seq", "_watchers", "began")

    def __init__(self, *, keep: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.began = monotonic()
        self._events: list[Event] = []
        self._packed: bytes | None = None
        self._watchers: list[asyncio.Future[None]] | None = None
        self._keep = keep
        self._seq = 0

    def add(self, kind: str, data: Data) -> None:
        """From the event loop's thread; ``data`` must be plain JSON data that nobody changes."""
        if self._packed is not None:
            return
        self._seq += 1
        self._events.append((self._seq, kind, monotonic() - self.began, data))
        if len(self._events) > 2 * self._keep:  # in bulk: dropping the first of a list is not free
            del self._events[: -self._keep]
        if self._watchers:
            self._wake()

    def close(self) -> None:
        """No more events: watchers end once they have read what is there."""
        self._packed = _encoder.encode(self._events[-self._keep :])
        self._events = []
        if self._watchers:
            self._wake()

    async def watch(self, job_id: str, *, after: int = 0) -> AsyncIterator[JobEvent]:
        """Events with ``seq > after``, in order, until the job has ended."""
        while True:
            for seq, kind, at_s, data in self._since(after):
                after = seq
                yield JobEvent(job_id=job_id, seq=seq, kind=kind, at_s=round(at_s, 6), data=data)
            if self._since(after):
                continue
            if self._packed is not None:
                return
            await self._change()

    def _since(self, after: int) -> list[Event]:
        kept = self._events[-self._keep :] if self._packed is None else _decoder.decode(self._packed)
        if not kept or kept[-1][0] <= after:
            return []
        return kept[max(0, after + 1 - kept[0][0]) :]

    async def _change(self) -> None:
        woken = self._loop.create_future()
        if self._watchers is None:
            self._watchers = []
        self._watchers.append(woken)
        try:
            await woken
        finally:
            if self._watchers and woken in self._watchers:
                self._watchers.remove(woken)

    def _wake(self) -> None:
        watchers, self._watchers = self._watchers or [], None
        for woken in watchers:
            if not woken.done():
                woken.set_result(None)


def encode_data(data: Data) -> Data:
    """A handler's data as plain JSON data of our own; what is not JSON, or too much, is replaced by a note."""
    if not data:
        return data
    try:
        encoded = _encoder.encode(data)
    except (TypeError, ValueError, RecursionError) as error:
        return {"dropped": trim(f"not JSON: {error}", 500)}
    if len(encoded) > DATA_LIMIT:
        return {"dropped": f"{len(encoded)} bytes of data; at most {DATA_LIMIT} are kept"}
    copied: Data = msgspec.json.decode(encoded)
    return copied
