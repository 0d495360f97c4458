"""The course of a job: INIT, RUN, EVAL, and the one way to end.

::

    queue(init) -> init -> queue(run) -> run -> (sandboxes released) -> queue(eval) -> eval -> final_result -> end
                     |                    |                                              |
                     +- init_exception    +- run_exception          eval_exception -----+

One task takes a job on for as long as it has a place in a stage's pool; a queued job has none. ``end`` closes the
job's exit stack and assembles the result, whatever happened before; a fault of the pipeline's own is a result, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from prorl.api.errors import BudgetExceeded, Fault, JobCancelled, SandboxFault, TaskFault
from prorl.api.job import Job
from prorl.pipeline.assemble import assemble
from prorl.pipeline.call import Call, Outcome, StageCall
from prorl.pipeline.faults import as_fault, text_of
from prorl.pipeline.handlers import Method
from prorl.pipeline.outputs import keep_output
from prorl.pipeline.record import JobRecord, LiveJob
from prorl.pipeline.services import House, Services
from prorl.pipeline.settings import BUDGETS, PipelineSettings
from prorl.pipeline.stage import StagePool
from prorl.pipeline.timer import JobTimer
from prorl.wire.jobs import Budgets, StageName
from prorl.wire.results import Timing
from prorl.wire.service import StageStatus

log = logging.getLogger("prorl.pipeline")
EXCEPTION_CALLBACK: Mapping[StageName, Method] = MappingProxyType(
    {"init": "init_exception", "run": "run_exception", "eval": "eval_exception"}
)


class Course:
    """Takes records through the stages. ``ended`` is called once per record, with its result in place."""

    def __init__(
        self, house: House, settings: PipelineSettings, *, server: str, ended: Callable[[JobRecord], None]
    ) -> None:
        self.abandoned: dict[str, int] = {}
        self._house = house
        self._settings = settings
        self._server = server
        self._ended = ended
        self._tasks: dict[asyncio.Task[None], JobRecord] = {}
        self._lost_calls: set[Call] = set()  # abandoned, still running: held so that they are not collected midway
        evals = StagePool[JobRecord]("eval", workers=settings.eval_workers, begin=self._begin)
        runs = StagePool[JobRecord](
            "run", workers=settings.run_workers, begin=self._begin, following=evals, ahead=settings.ahead
        )
        inits = StagePool[JobRecord](
            "init", workers=settings.init_workers, begin=self._begin, following=runs, ahead=settings.ahead
        )
        self._pools: dict[StageName, StagePool[JobRecord]] = {"init": inits, "run": runs, "eval": evals}

    def status(self) -> dict[str, StageStatus]:
        return {name: pool.status() for name, pool in self._pools.items()}

    def enter(self, record: JobRecord) -> None:
        record.events.add("job.accepted", {"handler": record.handler.name})
        self._enqueue("init", record)

    def cancel(self, record: JobRecord, reason: str, *, code: str = "cancelled") -> bool:
        """End a job now, wherever it is; false when it is ending already."""
        if record.ending or record.cancelled is not None:
            return False
        record.cancelled = JobCancelled(reason, code=code)
        record.events.add("job.cancelled", {"reason": reason})
        if record.ticket is not None and self._pools[record.stage].remove(record.ticket):
            record.ticket = None
            if record.live is None:
                self._finish(record)
            else:
                self._spawn(record, self._end(record))
        elif record.live is not None and record.live.call is not None:
            record.live.call.interrupt(record.cancelled)
        return True

    def handler_of(self, task: asyncio.Task[Any]) -> str | None:
        """Whose code a task runs, if it is one of ours."""
        record = self._tasks.get(task)
        return record.handler.name if record is not None else None

    # --- through the stages ----------------------------------------------------------------------------------------

    def _enqueue(self, stage: StageName, record: JobRecord) -> None:
        record.stage, record.state = stage, "queued"
        ticket = self._pools[stage].put(record, priority=record.request.priority)
        if ticket.item is not None:  # else its turn came at once
            record.ticket = ticket

    def _begin(self, stage: StageName, record: JobRecord) -> None:
        record.ticket, record.place = None, stage
        self._spawn(record, self._pass(stage, record))

    async def _pass(self, first: StageName, record: JobRecord) -> None:
        """Through ``first`` and on, for as long as places are free at once; else the queue begins the next pass."""
        stage: StageName | None = first
        try:
            live = record.live or self._make_live(record)
            while stage is not None:
                outcome = await self._work(stage, record, live)
                if outcome is None:  # abandoned: another task has taken the job on, this one is nobody's
                    return
                stage = await self._after(stage, record, live, outcome)
        except GeneratorExit:  # the event loop is gone: nothing can be awaited any more
            raise
        except BaseException as bug:  # what a handler returns may raise anything when it is looked at
            await self._fail_badly(record, bug)

    async def _work(self, stage: StageName, record: JobRecord, live: LiveJob) -> Outcome | None:
        record.stage, record.state = stage, "running"
        queued_s = round(record.now() - record.queued_since, 6)
        getattr(live.timing, stage).queued_s = queued_s
        record.events.add("stage.started", {"stage": stage, "queued_s": queued_s})
        handler = record.handler
        if record.cancelled is not None:
            return None, record.cancelled
        if stage in handler.threaded:
            call = live.call = self._call(record, stage)
            live.timer.begin(stage, call.interrupt)
            return await call.outcome(handler.methods[stage], live.job, threaded=True)
        stage_call = live.call = StageCall(
            grace_s=self._settings.cancel_grace_s, on_abandon=partial(self._go_on, stage, record, live)
        )
        live.timer.begin(stage, stage_call.interrupt)
        return await stage_call.outcome(handler.methods[stage], live.job)

    async def _after(self, stage: StageName, record: JobRecord, live: LiveJob, outcome: Outcome) -> StageName | None:
        """Settle a stage; returns the next one if the job may go straight on, ``None`` if it waits or has ended."""
        live.call = None
        await self._settle(stage, record, live, outcome)
        following = self._following(stage, record, live)
        if following is None and record.cancelled is None:
            await self._final_result(record, live)
        self._leave(record)
        if following == "eval" and live.services.holds_sandboxes and not record.handler.grading_needs_runtime:
            await self._bounded(record, live, "release", live.services.release_sandboxes)
        if following is None or record.cancelled is not None:
            await self._end(record)
            return None
        record.queued_since = record.now()
        if self._pools[following].take():
            record.place = following
            return following
        self._enqueue(following, record)
        return None

    def _go_on(self, stage: StageName, record: JobRecord, live: LiveJob, fault: Fault) -> None:
        """The stage's own task ignores its cancellation: leave it behind, go on in a new one."""
        self._count_abandoned(record, stage)

        async def rest() -> None:
            try:
                following = await self._after(stage, record, live, (None, fault))
            except GeneratorExit:
                raise
            except BaseException as bug:
                await self._fail_badly(record, bug)
            else:
                if following is not None:
                    await self._pass(following, record)

        self._spawn(record, rest())

    async def _settle(self, stage: StageName, record: JobRecord, live: LiveJob, outcome: Outcome) -> None:
        value, error = outcome
        timing = getattr(live.timing, stage)
        timing.worked_s = round(live.timer.end(), 6)
        if error is None:
            try:
                keep_output(stage, record.handler.name, live, value)
            except Fault as fault:
                error = fault
        live.graded = stage == "eval" and error is None
        record.events.add("stage.ended", {"stage": stage, "worked_s": timing.worked_s, "ok": error is None})
        if error is None or record.cancelled is not None:
            return
        live.fail(as_fault(error, stage, record.handler.name), stage)
        output = await self._callback(record, live, EXCEPTION_CALLBACK[stage], error)
        if output is not None:
            if stage == "eval":
                live.job.eval_output = output
            else:
                live.job.run_output = output

    def _leave(self, record: JobRecord) -> None:
        """Give the worker back."""
        if record.place is not None:
            place, record.place = record.place, None
            self._pools[place].release()

    async def _fail_badly(self, record: JobRecord, bug: BaseException) -> None:
        """An error of our own: the job still ends with a result."""
        log.error("job %s: the pipeline failed in %s", record.id, record.stage, exc_info=bug)
        stopped = isinstance(bug, asyncio.CancelledError)
        record.broken = RuntimeError("the event loop was stopped") if stopped else bug
        self._leave(record)
        await self._end(record)

    def _following(self, stage: StageName, record: JobRecord, live: LiveJob) -> StageName | None:
        if record.cancelled is not None or stage == "eval":
            return None
        if live.fault is None:
            return "run" if stage == "init" else "eval"
        # Only what the policy itself left unfinished (out of time, out of context) is worth grading.
        worth_grading = record.handler.grades_unfinished_runs and not live.mask and not live.timer.exhausted
        return "eval" if stage == "run" and worth_grading else None

    # --- handlers' callbacks ---------------------------------------------------------------------------------------

    def _call(self, record: JobRecord, method: str) -> Call:
        def lose(call: Call) -> None:
            self._count_abandoned(record, method)
            self._keep(call)

        name = f"{record.handler.name}.{method} {record.id}"
        return Call(name, grace_s=self._settings.cancel_grace_s, on_abandon=lose)

    async def _callback(self, record: JobRecord, live: LiveJob, name: Method, *args: Any) -> dict[str, Any] | None:
        """A bounded call of one of the four callbacks. Its own failure is a note, never fatal."""
        handler = record.handler
        method = handler.methods[name]
        if name in handler.inherited:
            inherited: dict[str, Any] = method(live.job, *args)
            return inherited
        limit = live.collect_s if name == "run_exception" else self._settings.callback_s
        call = live.call = self._call(record, name)
        late = BudgetExceeded(f"took longer than {limit:g} s")
        timer = asyncio.get_running_loop().call_later(limit, call.interrupt, late)
        value, error = await call.outcome(method, live.job, *args, threaded=name in handler.threaded)
        timer.cancel()
        live.call = None
        if error is None and isinstance(value, dict):
            return value
        if error is None:
            error = TaskFault(f"returned {type(value).__name__}, not a dict")
        live.notes.append(f"{name}: {type(error).__name__}: {text_of(error)}")
        return None

    async def _final_result(self, record: JobRecord, live: LiveJob) -> None:
        output = await self._callback(record, live, "final_result")
        if output is not None:
            live.verdict = output
        else:
            live.verdict = live.job.eval_output

    # --- the end ---------------------------------------------------------------------------------------------------

    async def _end(self, record: JobRecord) -> None:
        record.ending = True
        live = record.live
        try:
            if live is not None:
                live.services.close()
                if live.owns_something:
                    await self._bounded(record, live, "close", live.exit_stack.aclose)
        finally:
            self._finish(record)

    def _finish(self, record: JobRecord) -> None:
        record.ending = True
        status, body = assemble(record, server=self._server, key=self._house.certificate_key)
        record.finish(status, body)
        self._ended(record)

    async def _bounded(self, record: JobRecord, live: LiveJob, what: str, close: Callable[[], Any]) -> None:
        """Close something of the job's; what goes wrong is a note."""
        limit = self._settings.close_s
        call = Call(f"{what} {record.id}", grace_s=self._settings.cancel_grace_s, on_abandon=self._keep)
        late = SandboxFault(f"took longer than {limit:g} s")
        timer = asyncio.get_running_loop().call_later(limit, call.interrupt, late)
        _, error = await call.outcome(close)
        timer.cancel()
        if error is not None:
            live.notes.append(f"{what}: {type(error).__name__}: {text_of(error)}")
            log.warning("job %s: %s failed: %s", record.id, what, text_of(error))

    # --- inside ----------------------------------------------------------------------------------------------------

    def _make_live(self, record: JobRecord) -> LiveJob:
        budgets = self._budgets(record)
        timer = JobTimer(budgets)
        timing = Timing()
        services = Services(self._house, record.events, timer, timing)
        job = Job(
            id=record.id,
            request=record.request,
            handler=record.handler.name,
            settings=record.settings,
            services=services,
        )
        services.attach(job)
        record.live = LiveJob(job, services, timer, timing, collect_s=budgets.collect_s or self._settings.callback_s)
        return record.live

    def _budgets(self, record: JobRecord) -> Budgets:
        """The request's, else the server's, else the domain's: field by field."""
        said = (record.request.budgets, self._settings.budgets, record.handler.record.budgets, BUDGETS)

        def first(name: str) -> float | None:
            return next((seconds for each in said if (seconds := getattr(each, name)) is not None), None)

        return Budgets(**{name: first(name) for name in Budgets.__struct_fields__})

    def _spawn(self, record: JobRecord, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = record  # also keeps the task alive
        task.add_done_callback(self._tasks.pop)

    def _count_abandoned(self, record: JobRecord, method: str) -> None:
        handler = record.handler.name
        self.abandoned[handler] = self.abandoned.get(handler, 0) + 1
        log.warning("job %s: %s.%s ignores its cancellation and was left behind", record.id, handler, method)

    def _keep(self, call: Call) -> None:
        """A lost call's task must not be collected while it runs."""
        self._lost_calls.add(call)
        call.when_ended(lambda: self._lost_calls.discard(call))
