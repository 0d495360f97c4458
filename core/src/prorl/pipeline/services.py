"""What the core does for a handler, bound to one job (``job.services``).

Everything is made when it is first asked for and hangs on the job's exit stack. Once the job has ended, a handler that
was abandoned finds the door shut: it gets ``JobCancelled`` instead of a sandbox that nobody would ever stop.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar, cast

import msgspec

from prorl.api.capture import Capture
from prorl.api.errors import ConfigError, JobCancelled, SandboxFault, TaskFault
from prorl.api.job import Job
from prorl.api.llm import Chat
from prorl.api.sandbox import Sandbox, SandboxSpec
from prorl.api.tools import Tool
from prorl.capture import Doors
from prorl.llm.chat.ledger import Ledger
from prorl.llm.chat.session import ChatSession
from prorl.llm.chat.setup import ChatSetup
from prorl.llm.pool import BackendPool
from prorl.llm.rendering.cache import RendererCache
from prorl.pipeline.events import EventLog, encode_data
from prorl.pipeline.faults import trim
from prorl.pipeline.timer import JobTimer
from prorl.plugins.registry import Registry
from prorl.wire.results import Timing
from prorl.wire.trajectory import Trajectory

S = TypeVar("S", bound=msgspec.Struct)


class Sandboxes(Protocol):
    """What the pipeline needs of :class:`prorl.sandbox.manager.SandboxManager`."""

    async def start(self, spec: SandboxSpec, runtime: str | None = None) -> Sandbox: ...


class House:
    """What all jobs share. ``tables`` are the plugins' own. Call :meth:`settle` on the event loop's thread before the
    first job."""

    def __init__(
        self,
        registry: Registry,
        pool: BackendPool,
        sandboxes: Sandboxes,
        *,
        tables: Iterable[msgspec.Struct] = (),
        doors: Doors | None = None,
        certificate_key: bytes | None = None,
    ) -> None:
        self.registry = registry
        self.pool = pool
        self.sandboxes = sandboxes
        self.tables = {type(table): table for table in tables}
        self.doors = doors or Doors()
        self.certificate_key = certificate_key
        self.renderers = RendererCache()
        self.thread = threading.get_ident()

    def settle(self) -> None:
        """Remember which thread is the event loop's: handlers emit from others, too."""
        self.thread = threading.get_ident()

    def table(self, kind: type[S]) -> S:
        """See :meth:`prorl.api.job.JobServices.table`."""
        if kind not in self.tables:
            raise ConfigError(
                f"no plugin in use has declared {kind.__name__} as a table of prorl.toml: return "
                f"SettingsRecord(name=..., type={kind.__name__}, ...) from the hook prorl_settings"
            )
        return cast("S", self.tables[kind])


class Services:
    """Implements :class:`prorl.api.job.JobServices`. Call :meth:`attach` with the job that it serves."""

    __slots__ = (
        "_capture",
        "_chats",
        "_closed",
        "_events",
        "_house",
        "_job",
        "_ledger",
        "_loop",
        "_sandboxes",
        "_timer",
        "_timing",
    )

    def __init__(self, house: House, events: EventLog, timer: JobTimer, timing: Timing) -> None:
        self._house = house
        self._events = events
        self._timer = timer
        self._timing = timing
        self._loop = asyncio.get_running_loop()
        self._job: Job | None = None
        self._sandboxes: list[Sandbox] = []
        self._ledger = Ledger()
        self._chats: ChatSetup | None = None
        self._capture: Capture | None = None
        self._closed = False

    def attach(self, job: Job) -> None:
        self._job = job

    async def sandbox(self, spec: SandboxSpec, *, runtime: str | None = None) -> Sandbox:
        self._open_job()
        sandbox = await self._house.sandboxes.start(spec, runtime=runtime)
        if self._closed:
            await sandbox.stop()
        self._open_job()
        self.adopt(sandbox)
        return sandbox

    def chat(self, agent: str = "") -> Chat:
        job = self._open_job()
        if self._chats is None:
            lease = self._house.pool.lease(
                job.id,
                priority=job.request.priority,
                wait_s=job.request.backend_wait_s,
                hold=self._timer.hold,
            )
            job.exit_stack.callback(lease.release)
            self._chats = ChatSetup(
                lease=lease,
                renderers=self._house.renderers,
                ledger=self._ledger,
                sampling=job.request.sampling_params,
                rendering=job.request.rendering,
                spend=self.spend,
                emit=self.emit,
            )
        return ChatSession(self._chats, agent=agent)

    def capture(self, *, max_calls: int | None = None) -> Capture:
        job = self._open_job()
        if self._capture is not None:
            raise TaskFault("this job has its door already", code="capture")
        limit = job.request.sampling_params.max_tokens
        self._capture = door = self._house.doors.open(job.id, self.chat, max_tokens=limit, max_calls=max_calls)
        job.exit_stack.push_async_callback(door.close)
        return door

    def tools(self, names: tuple[str, ...]) -> list[Tool]:
        return [self._house.registry.tool(name).factory() for name in names]

    def table(self, kind: type[S]) -> S:
        return self._house.table(kind)

    def emit(self, kind: str, **data: Any) -> None:
        kind, encoded = trim(str(kind), 100), encode_data(data)  # here and now: the handler may change it later
        if threading.get_ident() == self._house.thread:
            self._events.add(kind, encoded)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._events.add, kind, encoded)

    def waiting(self) -> AbstractContextManager[None]:
        return self._timer.hold()

    def spend(self, *, model_s: float = 0.0, tools_s: float = 0.0) -> None:
        if not (math.isfinite(model_s) and math.isfinite(tools_s)):
            raise ValueError(f"seconds must be finite, not model_s={model_s}, tools_s={tools_s}")
        self._timing.model_s += model_s
        self._timing.tools_s += tools_s

    # --- what the pipeline asks of it ------------------------------------------------------------------------------

    def adopt(self, sandbox: Sandbox) -> None:
        """See to it that this sandbox is stopped, also one that a handler brought itself."""
        if any(sandbox is known for known in self._sandboxes):
            return
        if not self._sandboxes:
            self._open_job().exit_stack.push_async_callback(self.release_sandboxes)
        self._sandboxes.append(sandbox)

    async def release_sandboxes(self) -> None:
        """Stop all of the job's sandboxes. Raises ``SandboxFault`` naming those that failed to stop."""
        sandboxes, self._sandboxes = self._sandboxes, []
        ends = await asyncio.gather(*(sandbox.stop() for sandbox in sandboxes), return_exceptions=True)
        failed = [
            f"{sandbox.id}: {type(end).__name__}: {end}"
            for sandbox, end in zip(sandboxes, ends, strict=True)
            if isinstance(end, BaseException)
        ]
        if failed:
            raise SandboxFault(f"did not stop: {'; '.join(failed)}", code="stop_failed")

    @property
    def holds_sandboxes(self) -> bool:
        return bool(self._sandboxes)

    def trajectory(self) -> Trajectory:
        """All of the job's chats as one trajectory."""
        return self._ledger.trajectory()

    def close(self) -> None:
        """No more services; also lets go of the job, so that both are freed at once and not by the collector."""
        self._closed = True
        self._job = None

    def _open_job(self) -> Job:
        if self._closed or self._job is None:
            raise JobCancelled("the job has ended")
        return self._job
