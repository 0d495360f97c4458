"""Finished jobs, so that a resend or a late ``GET`` finds the result: bounded by count, by size and by age."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from prorl.pipeline.record import JobRecord


class FinishedJobs:
    """Oldest first out. ``sweep`` drops what is too old; ``add`` and ``get`` do that too."""

    def __init__(self, *, count: int, size: int, age_s: float) -> None:
        self._jobs: OrderedDict[str, JobRecord] = OrderedDict()
        self._count = count
        self._size_limit = size
        self._age_s = age_s
        self._size = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def newest_first(self) -> Iterator[JobRecord]:
        return reversed(self._jobs.values())

    def add(self, record: JobRecord, now: float) -> None:
        self._jobs[record.id] = record
        self._size += len(record.body or b"")
        # The newest always stays: somebody is about to fetch it.
        while len(self._jobs) > 1 and (len(self._jobs) > self._count or self._size > self._size_limit):
            self._drop_oldest()
        self.sweep(now)

    def get(self, job_id: str, now: float) -> JobRecord | None:
        self.sweep(now)
        return self._jobs.get(job_id)

    def drop(self, job_id: str) -> None:
        record = self._jobs.pop(job_id, None)
        if record is not None:
            self._size -= len(record.body or b"")

    def sweep(self, now: float) -> None:
        while self._jobs:
            oldest = next(iter(self._jobs.values()))
            if oldest.ended_at is None or now - oldest.ended_at <= self._age_s:
                return
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, record = self._jobs.popitem(last=False)
        self._size -= len(record.body or b"")
