"""The pipeline as the server uses it: jobs in, results out.

``open`` makes the handlers, ``start`` and ``stop`` say whether jobs are accepted, ``close`` ends everything. Every
accepted job ends with a result, also when the server goes down.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import version
from itertools import count, islice
from secrets import token_hex
from typing import Any

import msgspec

from prorl.api.errors import ConfigError
from prorl.capture import Doors
from prorl.llm.pool import BackendPool
from prorl.pipeline.course import Course
from prorl.pipeline.errors import JobConflict, NoBackend, NotAccepting, UnknownJob
from prorl.pipeline.handlers import BoundHandler, Handlers
from prorl.pipeline.record import JobRecord
from prorl.pipeline.services import House, Sandboxes
from prorl.pipeline.settings import PipelineSettings
from prorl.pipeline.store import FinishedJobs
from prorl.pipeline.tables import convert_table, overlay
from prorl.pipeline.watchdog import Watchdog
from prorl.plugins.registry import Registry
from prorl.wire.jobs import SERVER_STOPPED, JobRequest
from prorl.wire.results import JobEvent, JobState, JobView, RolloutResult
from prorl.wire.service import CancelReply, ServiceStatus

log = logging.getLogger("prorl.pipeline")
VERSION = version("prorl")
SWEEP_S = 30.0


class JobHandle:
    """A job that was accepted. ``created`` is false when the request attached to a job that was there already."""

    __slots__ = ("_record", "created")

    def __init__(self, record: JobRecord, *, created: bool) -> None:
        self._record = record
        self.created = created

    @property
    def id(self) -> str:
        return self._record.id

    async def result_json(self) -> bytes:
        """The :class:`RolloutResult` as JSON, once the job has ended. Giving up waiting does nothing to the job."""
        return await self._record.wait()

    async def result(self) -> RolloutResult:
        return msgspec.json.decode(await self._record.wait(), type=RolloutResult)

    def view(self) -> JobView:
        return self._record.view()


class Pipeline:
    """Use from one event loop. ``tables`` are the ``[handlers.*]`` of prorl.toml, ``plugin_tables`` those that plugins
    declare, checked. Results are signed if there is a ``certificate_key``."""

    def __init__(
        self,
        registry: Registry,
        pool: BackendPool,
        sandboxes: Sandboxes,
        settings: PipelineSettings | None = None,
        *,
        doors: Doors | None = None,
        tables: Mapping[str, Mapping[str, Any]] | None = None,
        plugin_tables: Iterable[msgspec.Struct] = (),
        server: str = "",
        certificate_key: bytes | None = None,
    ) -> None:
        self.settings = settings or PipelineSettings()
        self._registry = registry
        self._pool = pool
        self._tables = tables or {}
        self._server = server
        self._house = House(
            registry, pool, sandboxes, tables=plugin_tables, doors=doors, certificate_key=certificate_key
        )
        self._course = Course(self._house, self.settings, server=server, ended=self._job_ended)
        self._watchdog = Watchdog(threshold_s=self.settings.stall_s, handler_of=self._course.handler_of)
        self._handlers = Handlers()
        self._active: dict[str, JobRecord] = {}
        self._finished = FinishedJobs(
            count=self.settings.keep_results,
            size=self.settings.keep_results_mb * 2**20,
            age_s=self.settings.keep_results_s,
        )
        self._ended_counts: dict[str, int] = dict.fromkeys(("completed", "failed", "timed_out", "cancelled"), 0)
        self._incarnation = token_hex(8)  # unlike any other server's, so that made-up ids never collide
        self._numbers = count(1)
        self._accepting = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._opened = time.monotonic()
        self._sweeper: asyncio.TimerHandle | None = None

    # --- the server's life -----------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Make the handlers and begin to watch the loop. Does not accept jobs yet."""
        self._handlers = await asyncio.to_thread(Handlers.make, self._registry.handlers, self._tables)
        self._house.settle()
        self._watchdog.open(self._handlers)
        self._sweep()

    async def close(self) -> None:
        """Cancel what is left, deliver the results, close the handlers."""
        await self.stop()
        if self._sweeper is not None:
            self._sweeper.cancel()
        await asyncio.gather(*(self._close_handler(bound) for bound in self._handlers))
        self._watchdog.close()

    def start(self) -> bool:
        """Accept jobs; false when that was so already."""
        changed = not self._accepting
        self._accepting = True
        return changed

    async def stop(self, *, drain: bool = False, timeout_s: float = 60.0) -> bool:
        """Accept no more jobs and end those there are; false when it was stopped already.

        ``drain`` lets accepted jobs finish for up to ``timeout_s``; what is left then is cancelled. Every job has its
        result when this returns. A ``start`` in the meantime calls the rest of a drain off.
        """
        changed = self._accepting
        self._accepting = False
        if drain:
            deadline = time.monotonic() + timeout_s
            while self._active and not self._accepting and (left := deadline - time.monotonic()) > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left, 0.2)):
                        await self._idle.wait()
            if self._accepting:
                return changed
        remaining = list(self._active.values())
        for record in remaining:
            self._course.cancel(record, "the server was stopped", code=SERVER_STOPPED)
        for record in remaining:
            await record.wait()
        return changed

    @property
    def accepting(self) -> bool:
        return self._accepting

    # --- jobs ------------------------------------------------------------------------------------------------------

    def submit(self, request: JobRequest) -> JobHandle:
        """Accept a job, or attach to the one that has this ``job_id`` and this body; a job that only ended because the
        server was stopped, or because its client's connection broke, is run anew.

        Raises :class:`JobConflict`, :class:`NotAccepting`, :class:`NoBackend`, ``UnknownDomain``,
        ``HandlerUnavailable``, :class:`HandlerBroken`, and ``ConfigError`` for settings that the handler has not.
        """
        digest = digest_of(request)
        if request.job_id is not None and (known := self._find(request.job_id)) is not None:
            if known.digest != digest:
                raise JobConflict(known.id, known.digest)
            if not (self._accepting and known.was_dropped):
                return JobHandle(known, created=False)
            self._finished.drop(known.id)
        if not self._accepting:
            raise NotAccepting("the server was stopped: POST /start, or ask another one")
        if len(self._active) >= self.settings.max_jobs:
            raise NotAccepting(f"{len(self._active)} jobs are accepted already, which is the limit", retry_s=5)
        handler = self._handlers.get(self._registry.route(request.domain, request.instance).name)
        settings = _handler_settings(self._registry, handler, request.settings)
        self._require_backend(request)
        record = JobRecord(
            request.job_id if request.job_id is not None else f"job-{self._incarnation}-{next(self._numbers)}",
            request,
            digest=digest,
            handler=handler,
            settings=settings,
            keep_events=self.settings.keep_events,
        )
        self._active[record.id] = record
        self._idle.clear()
        self._course.enter(record)
        return JobHandle(record, created=True)

    def cancel(
        self,
        *,
        job_ids: Collection[str] = (),
        group_id: str | None = None,
        everything: bool = False,
        reason: str = "cancelled by request",
        code: str = "cancelled",
    ) -> CancelReply:
        """Cancel these jobs, a group, or everything. Jobs that have ended are left alone."""
        found = {job_id: self._find(job_id) for job_id in job_ids}
        chosen = {record.id: record for record in found.values() if record is not None}
        if group_id is not None or everything:
            chosen.update(
                (record.id, record) for record in self._active.values() if everything or record.group_id == group_id
            )
        return CancelReply(
            cancelled=[record.id for record in chosen.values() if self._course.cancel(record, reason, code=code)],
            unknown=[job_id for job_id, record in found.items() if record is None],
        )

    def job(self, job_id: str) -> JobView:
        """With its result once it has ended. Raises :class:`UnknownJob`."""
        return self._get(job_id).view(with_result=True)

    def jobs(self, *, state: JobState | None = None, group_id: str | None = None, limit: int = 100) -> list[JobView]:
        """Without results: those that have not ended first, then the latest ended."""
        chosen = (
            record
            for record in self._all()
            if (state is None or record.state == state) and (group_id is None or record.group_id == group_id)
        )
        return [record.view() for record in islice(chosen, limit)]

    def watch(self, job_id: str, *, after: int = 0) -> AsyncIterator[JobEvent]:
        """The job's events with ``seq > after``, until it ends. Raises :class:`UnknownJob` at once."""
        record = self._get(job_id)
        return record.events.watch(record.id, after=after)

    def status(self) -> ServiceStatus:
        stages = self._course.status()
        queued = sum(stage.queued for stage in stages.values())
        return ServiceStatus(
            server=self._server,
            version=VERSION,
            accepting=self._accepting,
            uptime_s=round(time.monotonic() - self._opened, 3),
            jobs={"queued": queued, "running": len(self._active) - queued, **self._ended_counts},
            stages=dict(stages),
            pool=self._pool.status(),
            loop_stalls=dict(self._watchdog.stalls),
            abandoned=dict(self._course.abandoned),
        )

    # --- inside ----------------------------------------------------------------------------------------------------

    def _job_ended(self, record: JobRecord) -> None:
        self._active.pop(record.id, None)
        self._finished.add(record, record.now())
        self._ended_counts[record.state] += 1
        if not self._active:
            self._idle.set()

    def _find(self, job_id: str) -> JobRecord | None:
        return self._active.get(job_id) or self._finished.get(job_id, time.monotonic())

    def _get(self, job_id: str) -> JobRecord:
        record = self._find(job_id)
        if record is None:
            raise UnknownJob(job_id)
        return record

    def _all(self) -> Iterator[JobRecord]:
        yield from self._active.values()
        yield from self._finished.newest_first()

    def _require_backend(self, request: JobRequest) -> None:
        """Whoever does not want to wait is told at once."""
        wait_s = self._pool.settings.wait_s if request.backend_wait_s is None else request.backend_wait_s
        if wait_s == 0 and not any(backend.healthy for backend in self._pool.status().backends):
            raise NoBackend("no LLM server is registered and well: POST /add_llm_server, or let backend_wait_s be > 0")

    def _sweep(self) -> None:
        """Old results go even when no job comes by."""
        self._finished.sweep(time.monotonic())
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    async def _close_handler(self, bound: BoundHandler) -> None:
        try:
            async with asyncio.timeout(self.settings.close_s):
                await bound.handler.close()
        except Exception:
            log.exception("handler %s did not close", bound.name)


def digest_of(request: JobRequest) -> str:
    """Of everything but the id, whatever the order of keys in the body was. Raises ``ConfigError``."""
    try:
        body = msgspec.json.encode(msgspec.structs.replace(request, job_id=None), order="sorted")
    except (TypeError, ValueError, RecursionError) as error:  # msgpack can say more than JSON can
        raise ConfigError(f"the request cannot be written as JSON: {error}") from None
    return hashlib.blake2b(body, digest_size=16).hexdigest()


def _handler_settings(registry: Registry, handler: BoundHandler, asked: Mapping[str, Any]) -> msgspec.Struct | None:
    kind = handler.record.settings
    if kind is not None:
        where = f"settings of {handler.name}"
        settings = convert_table(overlay(handler.table, asked), kind, where=where)
        registry.check_names(settings, where=where)
        return settings
    if asked:
        raise ConfigError(f"settings: the handler {handler.name!r} has none")
    return None
