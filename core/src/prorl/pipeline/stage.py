"""A stage's pool of workers: a queue in front of so many places.

A place is taken when work starts and given back when it ends, so idle workers and queued jobs cost no task. A stage
takes nothing new while ``ahead`` jobs already wait for the next stage: what INIT makes ready (live sandboxes) stays
bounded however slow RUN is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from prorl.pipeline.queue import JobQueue, Ticket
from prorl.wire.jobs import StageName
from prorl.wire.service import StageStatus

T = TypeVar("T")


class StagePool(Generic[T]):
    """``begin`` is called, synchronously, with each item whose turn has come; its work ends with :meth:`release`."""

    def __init__(
        self,
        name: StageName,
        *,
        workers: int,
        begin: Callable[[StageName, T], None],
        following: StagePool[T] | None = None,
        ahead: int = 1,
    ) -> None:
        self.name: StageName = name
        self.busy = 0
        self._workers = workers
        self._begin = begin
        self._queue: JobQueue[T] = JobQueue()
        self._following = following
        self._ahead = ahead
        self.feeding: StagePool[T] | None = None
        if following is not None:
            following.feeding = self

    @property
    def queued(self) -> int:
        return len(self._queue)

    def status(self) -> StageStatus:
        return StageStatus(workers=self._workers, busy=self.busy, queued=len(self._queue))

    def put(self, item: T, *, priority: int) -> Ticket[T]:
        ticket = self._queue.push(item, priority=priority)
        self.pump()
        return ticket

    def take(self) -> bool:
        """A place right now, without queueing; false when there is none, or others wait."""
        if self.busy >= self._workers or self._queue or self._held_back():
            return False
        self.busy += 1
        return True

    def remove(self, ticket: Ticket[T]) -> bool:
        """Take a queued item out; false when its work has begun."""
        removed = self._queue.remove(ticket)
        if removed and self.feeding is not None:
            self.feeding.pump()
        return removed

    def release(self) -> None:
        self.busy -= 1
        if self._queue:
            self.pump()

    def pump(self) -> None:
        """Begin what may begin."""
        while self.busy < self._workers and not self._held_back():
            item = self._queue.pop()
            if item is None:
                return
            self.busy += 1
            self._begin(self.name, item)
            if self.feeding is not None:  # room for one more to come from there
                self.feeding.pump()

    def _held_back(self) -> bool:
        return self._following is not None and self._following.queued >= self._ahead
