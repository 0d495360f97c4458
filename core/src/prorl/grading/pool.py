"""A few warm worker processes, and the rule that every call ends: with a verdict, a fault, or a kill.

The pool has ``size`` slots. A call takes the slot used last (so that few processes stay warm under a light load), has
its worker answer, and gives the slot back. A worker that missed its deadline, crashed, or whose caller was cancelled is
killed with its whole group, and its slot starts the next one at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from prorl.api.errors import GraderFault
from prorl.grading.process import Worker

T = TypeVar("T")


class GraderPool:
    """Run ``worker`` (``"module:function"``, a plain ``def (payload: dict) -> dict``) in killable processes.

    Make it inside a running event loop and use it on that loop only. Processes start when they are first needed.

    ``preload``: modules to import before the first call, besides the function's own.
    ``memory_mb``: address space of one worker; beyond it the function sees ``MemoryError``.
    ``confined``: the function only computes: evaluating text, writing files, starting processes and opening sockets end
    in ``PermissionError`` (:mod:`prorl.grading.confine`). For everything that parses what a model wrote.
    ``may_compile``: functions (``"module:name"``) that may compile nevertheless: those that fill in fixed templates.
    ``recycle_after``: calls until a worker is replaced, so that leaks and fragmentation stay bounded.
    ``max_waiting``: calls that may wait for a slot; one more is refused.
    ``start_timeout``: seconds for a worker's imports; they are never charged to a call.

    ::

        pool = GraderPool("mytask.grading:grade", size=2)
        verdict = await pool.grade({"gold": "4", "answer": "2+2"}, timeout=10)
    """

    def __init__(
        self,
        worker: str,
        *,
        size: int = 2,
        preload: Sequence[str] = (),
        memory_mb: int = 2048,
        confined: bool = False,
        may_compile: Sequence[str] = (),
        recycle_after: int = 1000,
        max_waiting: int = 10_000,
        start_timeout: float = 120.0,
    ) -> None:
        if size < 1 or recycle_after < 1:
            raise ValueError("size and recycle_after must be at least 1")
        self._target = worker
        self._preload = tuple(preload)
        self._memory_mb = memory_mb
        if may_compile and not confined:
            raise ValueError("may_compile is for a confined grader")
        self._doors = ["confined", *may_compile] if confined else ["free"]
        self._recycle_after = recycle_after
        self._max_waiting = max_waiting
        self._start_timeout = start_timeout
        self._slots = [_Slot() for _ in range(size)]
        self._free: asyncio.LifoQueue[_Slot] = asyncio.LifoQueue()
        for slot in self._slots:
            self._free.put_nowait(slot)
        self._waiting = 0
        self._background: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def grade(self, payload: dict[str, Any], timeout: float) -> dict[str, Any]:
        """The function's dict for ``payload`` (both JSON).

        ``timeout`` is in seconds of the worker's own time: waiting for a free worker, or for its imports, is not
        counted. Raises :class:`GraderFault` with ``code``: ``timeout``, ``crashed`` (the process died), ``raised``
        (the function did), ``bad_reply``, ``start`` (it can't be imported), ``overloaded``, ``closed``.
        """
        if self._closed:
            raise GraderFault("the grader pool is closed", code="closed")
        if self._waiting >= self._max_waiting:
            raise GraderFault(f"{self._waiting} calls already wait for a grader", code="overloaded")
        self._waiting += 1
        try:
            slot = await self._free.get()
        finally:
            self._waiting -= 1
        try:
            return await self._grade_in(slot, payload, timeout)
        finally:
            self._free.put_nowait(slot)

    async def _grade_in(self, slot: _Slot, payload: dict[str, Any], timeout: float) -> dict[str, Any]:
        worker = await self._worker_of(slot)
        try:
            answer = await worker.call(payload, timeout)
        except BaseException as error:  # a cancelled caller, too: nobody will ever read this worker's reply
            self._retire(slot, worker)
            if self._closed and isinstance(error, GraderFault):
                raise GraderFault("the grader pool was closed during the call", code="closed") from None
            raise
        if answer.error is not None:
            self._retire(slot, worker)  # after MemoryError or SystemExit a process is not worth keeping
            fault = GraderFault(f"the grader raised {answer.error}", code="raised")
            fault.add_note(answer.traceback or "")
            raise fault
        if worker.calls >= self._recycle_after:
            self._retire(slot, worker)
        return answer.result or {}

    async def _worker_of(self, slot: _Slot) -> Worker:
        """The slot's worker, once it is ready. A caller that is cancelled here leaves the start to the next one."""
        if slot.starting is None:
            slot.starting = self._spawn(self._start(slot))
        try:
            return await asyncio.shield(slot.starting)
        except GraderFault:
            slot.starting = None
            raise
        except asyncio.CancelledError:
            if self._closed and slot.starting.cancelled():
                raise GraderFault("the grader pool was closed while a worker started", code="closed") from None
            raise

    async def _start(self, slot: _Slot) -> Worker:
        if self._closed:
            raise GraderFault("the grader pool is closed", code="closed")
        worker = await Worker.start(self._target, memory_mb=self._memory_mb, doors=self._doors, preload=self._preload)
        slot.worker = worker
        try:
            await worker.ready(self._start_timeout)
        except BaseException:
            self._bury(slot, worker)
            raise
        return worker

    def _retire(self, slot: _Slot, worker: Worker) -> None:
        """Kill the slot's worker and begin with its replacement, so that the next caller finds it warm."""
        self._bury(slot, worker)
        slot.starting = None if self._closed else self._spawn(self._start(slot))

    def _bury(self, slot: _Slot, worker: Worker) -> None:
        if slot.worker is not worker:
            return  # close() was here first
        slot.worker = None
        worker.kill()
        self._spawn(worker.reap())

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled():
            task.exception()  # read here: a start that failed is reported to the slot's next caller

    async def close(self) -> None:
        """Kill every worker and wait until none is left. Calls under way end in a fault (code ``closed``)."""
        self._closed = True
        for slot in self._slots:
            if slot.starting is not None:
                slot.starting.cancel()
            if slot.worker is not None:
                self._bury(slot, slot.worker)
        while self._background:
            await asyncio.wait(set(self._background))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Slot:
    """A place for one worker: ``starting`` is the task whose result it is; ``worker`` is the process, ready or not."""

    def __init__(self) -> None:
        self.starting: asyncio.Task[Worker] | None = None
        self.worker: Worker | None = None
