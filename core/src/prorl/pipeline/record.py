"""What the pipeline knows of a job.

A :class:`JobRecord` is small: thousands may wait. What a job needs once work on it begins (the handler's ``Job``,
services, timer, timings) is a :class:`LiveJob`, made when INIT starts and dropped when the job has ended.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

import msgspec

from prorl.api.errors import Fault, JobCancelled
from prorl.api.job import Job
from prorl.pipeline.call import Call, StageCall
from prorl.pipeline.events import EventLog
from prorl.pipeline.faults import masks
from prorl.pipeline.handlers import BoundHandler
from prorl.pipeline.queue import Ticket
from prorl.pipeline.services import Services
from prorl.pipeline.timer import JobTimer
from prorl.wire.jobs import RUN_ANEW, JobRequest, StageName
from prorl.wire.results import JobState, JobView, RolloutResult, Status, Timing


class LiveJob:
    """A job that is being worked on.

    ``collect_s`` is what ``run_exception`` may take. ``fault`` is the first that met it, ``notes`` go into the result's
    metrics, ``verdict`` is what ``final_result`` said, ``graded`` whether EVAL came to an end.
    """

    __slots__ = (
        "call",
        "collect_s",
        "exit_stack",
        "fault",
        "fault_stage",
        "graded",
        "job",
        "mask",
        "notes",
        "services",
        "timer",
        "timing",
        "verdict",
    )

    def __init__(self, job: Job, services: Services, timer: JobTimer, timing: Timing, *, collect_s: float) -> None:
        self.job = job
        self.collect_s = collect_s
        self.exit_stack = job.exit_stack  # ours to close, whatever a handler makes of its job
        self.services = services
        self.timer = timer
        self.timing = timing
        self.call: Call | StageCall | None = None
        self.fault: Fault | None = None
        self.fault_stage: StageName = "init"
        self.mask = False
        self.graded = False
        self.notes: list[str] = []
        self.verdict: dict[str, Any] = {}

    @property
    def owns_something(self) -> bool:
        """Whether the exit stack has anything to close; closing an empty one costs a task for nothing."""
        return bool(getattr(self.exit_stack, "_exit_callbacks", True))  # contextlib has no public way to ask

    def fail(self, fault: Fault, stage: StageName) -> None:
        """The first fault is the result's error; a later one can only mask the sample and is noted."""
        self.mask = self.mask or masks(fault, stage)
        if self.fault is None:
            self.fault, self.fault_stage = fault, stage
        else:
            self.notes.append(f"then {stage} failed: {fault}")


class JobRecord:
    """From acceptance until its result is dropped. ``body`` is the finished result as JSON."""

    __slots__ = (
        "_loop",
        "_waiters",
        "accepted_at",
        "body",
        "broken",
        "cancelled",
        "digest",
        "ended_at",
        "ending",
        "events",
        "group_id",
        "handler",
        "id",
        "live",
        "place",
        "queued_since",
        "request",
        "settings",
        "stage",
        "state",
        "ticket",
    )

    def __init__(
        self,
        job_id: str,
        request: JobRequest,
        *,
        digest: str,
        handler: BoundHandler,
        settings: msgspec.Struct | None,
        keep_events: int,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.id = job_id
        self.request = request
        self.digest = digest
        self.handler = handler
        self.settings = settings
        self.group_id = request.group_id
        self.accepted_at = time.time()
        self.state: JobState = "queued"
        self.stage: StageName = "init"
        self.ticket: Ticket[JobRecord] | None = None
        self.place: StageName | None = None  # the stage whose worker it has
        self.queued_since = time.monotonic()
        self.live: LiveJob | None = None
        self.cancelled: JobCancelled | None = None
        self.broken: BaseException | None = None
        self.ending = False
        self.ended_at: float | None = None
        self.body: bytes | None = None
        self.events = EventLog(keep=keep_events)
        self._waiters: list[asyncio.Future[None]] | None = None

    @property
    def was_dropped(self) -> bool:
        """Whether it ended only because the server stopped, or its client's connection broke."""
        return self.ended_at is not None and self.cancelled is not None and self.cancelled.code in RUN_ANEW

    def now(self) -> float:
        return time.monotonic()

    def age(self) -> float:
        return time.monotonic() - self.events.began

    def finish(self, status: Status, body: bytes) -> None:
        """Keep the result, drop everything else, wake who waits."""
        self.state = status
        self.body = body
        self.ended_at = time.monotonic()
        self.settings = self.live = None
        del self.request  # it may be large, and thousands of finished jobs are kept
        self.events.add("job.ended", {"status": status})
        self.events.close()
        waiters, self._waiters = self._waiters or [], None
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> bytes:
        """The finished result as JSON. Cancelling the wait does nothing to the job."""
        if self.body is None:
            waiter = self._loop.create_future()
            if self._waiters is None:
                self._waiters = []
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if self._waiters is not None:
                    self._waiters.remove(waiter)
        if self.body is None:
            raise RuntimeError(f"job {self.id} woke its waiters without a result")
        return self.body

    def view(self, *, with_result: bool = False) -> JobView:
        result = None
        if with_result and self.body is not None:
            result = msgspec.json.decode(self.body, type=RolloutResult)
        return JobView(
            job_id=self.id,
            state=self.state,
            handler=self.handler.name,
            group_id=self.group_id,
            stage=self.stage,
            accepted_at=datetime.fromtimestamp(self.accepted_at, UTC).isoformat(timespec="milliseconds"),
            result=result,
        )
