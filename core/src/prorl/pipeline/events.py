"""A job's events: a short log that watchers read at their own pace.

Nothing is ever sent *to* a watcher. It keeps its place (a sequence number) and reads on when woken, so a slow one costs
the job nothing; what the log had to drop meanwhile shows as a gap in ``seq``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from prorl.wire.results import JobEvent

DATA_LIMIT = 16_384
_encoder = msgspec.json.Encoder()


class EventLog:
    """Bounded; ``at_s`` counts from the job's acceptance."""

    __slots__ = ("_closed", "_events", "_keep", "_loop", "_seq", "_watchers")

    def __init__(self, *, keep: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: list[tuple[int, str, float, bytes]] = []
        self._watchers: list[asyncio.Future[None]] | None = None
        self._keep = keep
        self._seq = 0
        self._closed = False

    def add(self, kind: str, at_s: float, data: dict[str, Any]) -> None:
        """From the event loop's thread. ``data`` that is not JSON, or too much of it, is replaced by a note."""
        if self._closed:
            return
        self._seq += 1
        self._events.append((self._seq, kind, at_s, _encode(data) if data else b"{}"))
        if len(self._events) > 2 * self._keep:  # in bulk: dropping the first of a list is not free
            del self._events[: -self._keep]
        if self._watchers:
            self._wake()

    def close(self) -> None:
        """No more events: watchers end once they have read what is there."""
        self._closed = True
        if self._watchers:
            self._wake()

    async def watch(self, job_id: str, *, after: int = 0) -> AsyncIterator[JobEvent]:
        """Events with ``seq > after``, in order, until the job has ended."""
        while True:
            for seq, kind, at_s, data in self._since(after):
                after = seq
                yield JobEvent(job_id=job_id, seq=seq, kind=kind, at_s=at_s, data=msgspec.json.decode(data))
            if self._since(after):
                continue
            if self._closed:
                return
            await self._change()

    def _since(self, after: int) -> list[tuple[int, str, float, bytes]]:
        kept = self._events[-self._keep :]
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


def _encode(data: dict[str, Any]) -> bytes:
    try:
        encoded = _encoder.encode(data)
    except (TypeError, ValueError, RecursionError) as error:
        return _encoder.encode({"dropped": f"not JSON: {error}"})
    if len(encoded) > DATA_LIMIT:
        return _encoder.encode({"dropped": f"{len(encoded)} bytes of data; at most {DATA_LIMIT} are kept"})
    return encoded
