"""What waits for a stage: highest priority first, then first come, first served.

Removal marks the ticket and leaves it in the heap (no scan); the heap is rebuilt when more than half of it is marked,
so that cancelling thousands of jobs gives their memory back.
"""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

T = TypeVar("T")


class Ticket(Generic[T]):
    """A place in the queue. ``item`` is ``None`` once it was taken or removed."""

    __slots__ = ("_place", "item")

    def __init__(self, item: T, priority: int, number: int) -> None:
        self.item: T | None = item
        self._place = (-priority, number)

    def __lt__(self, other: Ticket[T]) -> bool:
        return self._place < other._place


class JobQueue(Generic[T]):
    def __init__(self) -> None:
        self._heap: list[Ticket[T]] = []
        self._live = 0
        self._number = 0

    def __len__(self) -> int:
        return self._live

    def __bool__(self) -> bool:
        return self._live > 0

    def push(self, item: T, *, priority: int = 0) -> Ticket[T]:
        self._number += 1
        ticket = Ticket(item, priority, self._number)
        heapq.heappush(self._heap, ticket)
        self._live += 1
        return ticket

    def pop(self) -> T | None:
        """The next item; ``None`` when nothing waits."""
        while self._heap:
            ticket = heapq.heappop(self._heap)
            item, ticket.item = ticket.item, None
            if item is not None:
                self._live -= 1
                return item
        return None

    def remove(self, ticket: Ticket[T]) -> bool:
        """Take a ticket out; false when it is out already."""
        if ticket.item is None:
            return False
        ticket.item = None
        self._live -= 1
        if len(self._heap) > 64 and self._live * 2 < len(self._heap):
            self._heap = [each for each in self._heap if each.item is not None]
            heapq.heapify(self._heap)
        return True
