"""Replies under way and given, and which of them a call that comes again is to get.

The same call again is one of two things. A *retry* gets the reply that is there, or joins the one under way: the first
one's client has gone away, it carries the same idempotency key or says that it is a retry, or it comes while the
first is under way and does not say that it is a first try. Everything else is a *second sample*.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from prorl.capture.talk import Answer, Marks


class Sample:
    """One reply to one prompt, from when it was asked for. ``waiting`` counts the clients that are there for it."""

    def __init__(self, marks: Marks, task: asyncio.Task[Answer]) -> None:
        self.keys = {marks.idempotency_key} - {None}
        self.name = marks.sample
        self.task = task
        self.waiting = 0
        self.delivered = False

    @property
    def failed(self) -> bool:
        return self.task.done() and (self.task.cancelled() or self.task.exception() is not None)

    @property
    def abandoned(self) -> bool:
        """Nobody got it, and nobody waits for it."""
        return not self.delivered and not self.waiting

    @contextmanager
    def attended(self) -> Iterator[None]:
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1


def retried(known: Sequence[Sample], marks: Marks) -> Sample | None:
    """The sample that this call is a retry of, if it is one."""
    samples = [sample for sample in known if not sample.failed and sample.name == marks.sample]
    for sample in reversed(samples):
        if marks.idempotency_key is not None and marks.idempotency_key in sample.keys:
            return sample
    for sample in samples:
        if sample.abandoned:
            return sample
    if not samples or (marks.first and not marks.retry):
        return None
    return samples[-1] if marks.retry or not samples[-1].task.done() else None
