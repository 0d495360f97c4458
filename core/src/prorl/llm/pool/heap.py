"""The min-heap of backends: a new task goes where the fewest tasks went.

The key counts *tasks* since registration, not turns. A backend that joins (or comes back) starts at the pool's minimum:
at zero it would get every new task until it had caught up. Among equals the one with fewer calls in flight is taken.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection
from itertools import count

from prorl.llm.pool.backend import Backend


class TaskHeap:
    """The backends that may be given tasks."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Backend]] = []
        self._arrival = count()

    def __len__(self) -> int:
        return len(self._heap)

    def __contains__(self, backend: Backend) -> bool:
        return any(member is backend for _, _, member in self._heap)

    def join(self, backend: Backend) -> None:
        """Take ``backend`` in, never below the current minimum."""
        if self._heap:
            backend.rank = max(backend.rank, self._heap[0][0])
        self._push(backend)

    def leave(self, backend: Backend) -> None:
        self._heap = [entry for entry in self._heap if entry[2] is not backend]
        heapq.heapify(self._heap)

    def take(self, avoid: Collection[str] = ()) -> Backend | None:
        """Give one task to the least loaded backend; urls in ``avoid`` only when nothing else is left."""
        passed: list[tuple[int, int, Backend]] = []
        equals: list[tuple[int, int, Backend]] = []
        while self._heap and (not equals or self._heap[0][0] == equals[0][0]):
            entry = heapq.heappop(self._heap)
            (passed if entry[2].url in avoid else equals).append(entry)
        for entry in passed + equals:
            heapq.heappush(self._heap, entry)
        if not equals:
            return self.take() if passed else None
        _, _, chosen = min(equals, key=lambda entry: (entry[2].in_flight, entry[1]))
        self.assign(chosen)
        return chosen

    def assign(self, backend: Backend) -> None:
        """Count one more task for this member."""
        self.leave(backend)
        backend.assigned += 1
        backend.rank += 1
        self._push(backend)

    def _push(self, backend: Backend) -> None:
        heapq.heappush(self._heap, (backend.rank, next(self._arrival), backend))
