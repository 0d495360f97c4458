"""What was found once is kept for a while; who asks for the same at the same time waits for one answer; and no more is
sent per second than was agreed."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class Cache(Generic[V]):
    """``size`` measures a value; the least recently used go when there is more than ``limit``.

    Failures are not kept.
    """

    def __init__(self, limit: int, keep_s: float, size: Callable[[V], int] = lambda _: 1) -> None:
        self._limit = limit
        self._keep_s = keep_s
        self._size = size
        self._used = 0
        self._kept: OrderedDict[Hashable, tuple[float, V]] = OrderedDict()
        self._coming: dict[Hashable, asyncio.Task[V]] = {}

    async def get(self, key: Hashable, make: Callable[[], Awaitable[V]]) -> V:
        now = asyncio.get_running_loop().time()
        if (kept := self._kept.get(key)) is not None:
            if now - kept[0] < self._keep_s:
                self._kept.move_to_end(key)
                return kept[1]
            self._forget(key)
        task = self._coming.get(key)
        if task is None:
            task = asyncio.ensure_future(self._make(key, make))
            self._coming[key] = task
            task.add_done_callback(lambda done: self._came(key, done))
        return await asyncio.shield(task)  # one caller that is cancelled leaves the others their answer

    async def _make(self, key: Hashable, make: Callable[[], Awaitable[V]]) -> V:
        value = await make()
        size = self._size(value)
        if size <= self._limit:
            self._kept[key] = (asyncio.get_running_loop().time(), value)
            self._used += size
            while self._used > self._limit:
                self._forget(next(iter(self._kept)))
        return value

    def _came(self, key: Hashable, task: asyncio.Task[V]) -> None:
        self._coming.pop(key, None)
        if not task.cancelled():
            task.exception()  # read here: all its callers may have been cancelled

    def _forget(self, key: Hashable) -> None:
        self._used -= self._size(self._kept.pop(key)[1])

    async def close(self) -> None:
        tasks = list(self._coming.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class Pace:
    """At most ``per_second`` turns a second, evenly."""

    def __init__(self, per_second: float) -> None:
        self._apart = 1.0 / per_second
        self._next = 0.0

    async def turn(self) -> None:
        now = asyncio.get_running_loop().time()
        at = max(now, self._next)
        self._next = at + self._apart
        await asyncio.sleep(at - now)
