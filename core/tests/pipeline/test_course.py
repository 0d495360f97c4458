"""A job's course through the stages: what is called when, and what the result says."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import msgspec
import pytest

from prorl.api import (
    AgentHandler,
    ContextOverflow,
    GraderFault,
    HandlerRecord,
    Job,
    ModelFault,
    SandboxFault,
    SandboxSpec,
)
from prorl.pipeline.settings import BudgetSettings, PipelineSettings
from prorl.wire import Budgets, JobRequest


class Base(AgentHandler):
    async def init(self, job: Job) -> Any:
        return None, {"m": 1}, {"c": 2}

    async def run(self, job: Job) -> dict[str, Any]:
        return {"ran": True}

    async def eval(self, job: Job) -> dict[str, Any]:
        return {"reward": 1.0}


async def test_a_rollout_that_goes_well(house):
    class Full(Base):
        async def eval(self, job):
            assert (job.metadata, job.config, job.run_output) == ({"m": 1}, {"c": 2}, {"ran": True})
            job.services.spend(model_s=1.5, tools_s=0.25)
            return {
                "reward": 0.5,
                "resolved": True,
                "reason": "half right",
                "metrics": {"turns": 3},
                "artifacts": {"patch": "x"},
            }

    async with house(Full) as h:
        result = await h.run("full", job_id="a", group_id="g", instance={"instance_id": "row-7"})
    assert (result.status, result.stage, result.error) == ("completed", "eval", None)
    assert (result.job_id, result.group_id, result.instance_id) == ("a", "g", "row-7")
    assert (result.handler, result.server, result.attempts) == ("full", "here", 1)
    assert (result.reward, result.resolved, result.mask_sample) == (0.5, True, False)
    assert result.metrics == {"turns": 3, "reason": "half right"}
    assert result.artifacts == {"patch": "x"}
    assert (result.timing.model_s, result.timing.tools_s) == (1.5, 0.25)
    assert result.timing.total_s > 0


async def test_resolved_defaults_to_a_full_reward(house):
    async with house() as h:
        assert (await h.run(instance={"reward": 1})).resolved
        assert not (await h.run(instance={"reward": 0.99})).resolved


@pytest.mark.parametrize("failing", ["init", "run", "eval"])
async def test_the_callback_of_the_stage_that_failed_and_no_other(house, failing):
    calls: list[str] = []

    class Fails(Base):
        async def init(self, job):
            return self.step("init", (None, {}, {}))

        async def run(self, job):
            return self.step("run", {})

        async def eval(self, job):
            return self.step("eval", {"reward": 1.0})

        def step(self, name, value):
            calls.append(name)
            if name == failing:
                raise ValueError("no luck")
            return value

        async def init_exception(self, job, exc):
            calls.append(f"init_exception {type(exc).__name__}")
            return {"left": "init"}

        async def run_exception(self, job, exc):
            calls.append(f"run_exception {type(exc).__name__}")
            return {"left": "run"}

        async def eval_exception(self, job, exc):
            calls.append(f"eval_exception {type(exc).__name__}")
            return {"left": "eval"}

        async def final_result(self, job):
            calls.append("final_result")
            return {**job.eval_output, "metrics": {"left": job.run_output.get("left") or job.eval_output.get("left")}}

    async with house(Fails) as h:
        result = await h.run("fails")
    stages = ["init", "run", "eval"]
    expected = [*stages[: stages.index(failing) + 1], f"{failing}_exception ValueError", "final_result"]
    assert calls == expected
    assert (result.status, result.stage, result.reward, result.mask_sample) == ("failed", failing, 0.0, True)
    assert result.error is not None
    assert result.error.kind == ("grader" if failing == "eval" else "task")
    assert result.error.stage == failing
    assert "ValueError: no luck" in result.error.message
    assert "in step" in (result.error.traceback or "")
    assert result.metrics == {"left": failing}


@pytest.mark.parametrize(
    ("fault", "kind", "code", "masked"),
    [
        (ModelFault("gone", code="unreachable"), "model", "unreachable", True),
        (ContextOverflow("full"), "model", "context_overflow", False),
        (SandboxFault("died"), "sandbox", None, True),
        (SystemExit(3), "task", "handler_error", True),
        (KeyboardInterrupt(), "task", "handler_error", True),
        (asyncio.CancelledError(), "task", "handler_error", True),
        (RecursionError("deep"), "task", "handler_error", True),
    ],
)
async def test_a_fault_in_run_is_data(house, fault, kind, code, masked):
    class Raises(Base):
        async def run(self, job):
            raise fault

    async with house(Raises) as h:
        result = await h.run("raises")
        assert (await h.run()).status == "completed"
    assert (result.status, result.stage) == ("failed", "run")
    assert (result.error.kind, result.error.code, result.mask_sample) == (kind, code, masked)


async def test_an_exception_that_cannot_be_shown(house):
    class RudeError(Exception):
        def __str__(self):
            raise RuntimeError("no")

    class Raises(Base):
        async def run(self, job):
            raise RudeError

        async def eval(self, job):
            return {"reward": 1.0, "metrics": {"\ud800": "\ud800"}}

    async with house(Raises) as h:
        result = await h.run("raises")
        assert result.error.kind == "task"


async def test_lone_surrogates_never_break_a_result(house):
    class Odd(Base):
        async def eval(self, job):
            return {
                "reward": 1.0,
                "reason": "\ud800",
                "metrics": {"\ud800": 1, "b": "\ud800"},
                "artifacts": {"ok": "1"},
            }

    class OddFault(Base):
        async def run(self, job):
            raise ValueError("\ud800")

    async with house(Odd, OddFault) as h:
        result = await h.run("odd")
        assert (result.status, result.reward, result.artifacts) == ("completed", 1.0, {"ok": "1"})
        assert (await h.run("oddfault")).error.kind == "task"


@pytest.mark.parametrize(
    ("init", "run"),
    [(None, {}), ((None, {}), {}), ((None, [], {}), {}), (("text", {}, {}), {}), ((None, {}, {}), "text")],
)
async def test_garbage_from_a_stage_is_the_tasks_fault(house, init, run):
    class Garbage(Base):
        async def init(self, job):
            return init

        async def run(self, job):
            return run

    async with house(Garbage) as h:
        result = await h.run("garbage")
    assert (result.status, result.error.kind, result.error.code) == ("failed", "task", "bad_output")
    assert "returned" in result.error.message


@pytest.mark.parametrize(
    "verdict",
    [
        None,
        [],
        {},
        {"reward": None},
        {"reward": True},
        {"reward": "1.0"},
        {"reward": float("nan")},
        {"reward": float("inf")},
        {"reward": 10**400},
        {"reward": 1.0, "resolved": "yes"},
        {"reward": 1.0, "mask_sample": 1},
    ],
)
async def test_a_verdict_that_is_none_masks_the_sample(house, verdict):
    class Grader(Base):
        async def eval(self, job):
            return verdict

    async with house(Grader) as h:
        result = await h.run("grader")
    assert (result.status, result.stage, result.error.kind) == ("failed", "eval", "grader")
    assert (result.reward, result.resolved, result.mask_sample) == (0.0, False, True)


async def test_metrics_that_are_not_json_are_left_out_with_a_note(house):
    loop: dict[str, Any] = {}
    loop["self"] = loop

    class Messy(Base):
        async def eval(self, job):
            return {"reward": 1.0, "metrics": {"a": object(), "b": 2, 3: 4, "c": loop}, "artifacts": ["no"]}

    async with house(Messy) as h:
        result = await h.run("messy")
    assert (result.status, result.reward, result.metrics["b"]) == ("completed", 1.0, 2)
    notes = result.metrics["pipeline_notes"]
    assert len(notes) == 4
    assert set(result.metrics) == {"b", "pipeline_notes"}


async def test_a_result_is_not_changed_by_the_handler_afterwards(house):
    kept: dict[str, Any] = {"n": [1]}

    class Keeps(Base):
        async def eval(self, job):
            return {"reward": 1.0, "metrics": kept}

    async with house(Keeps) as h:
        handle = h.pipeline.submit(JobRequest(domain="keeps", instance={}))
        await handle.result_json()
        kept["n"].append(2)
        assert (await handle.result()).metrics == {"n": [1]}


async def test_callbacks_that_fail_or_hang_are_notes(house):
    class Bad(Base):
        async def run(self, job):
            raise ValueError("first")

        async def run_exception(self, job, exc):
            raise KeyError("second")

        async def final_result(self, job):
            await asyncio.Event().wait()

    async with house(Bad, settings=PipelineSettings(callback_s=0.05)) as h:
        result = await h.run("bad")
    assert (result.status, result.error.kind) == ("failed", "task")
    assert "first" in result.error.message
    first, second = result.metrics["pipeline_notes"]
    assert first.startswith("run_exception: KeyError")
    assert second.startswith("final_result: BudgetExceeded")


async def test_final_result_has_the_last_word(house):
    class Last(Base):
        async def final_result(self, job):
            return {**job.eval_output, "reward": 0.25, "mask_sample": True}

    async with house(Last) as h:
        result = await h.run("last")
    assert (result.reward, result.mask_sample, result.status) == (0.25, True, "completed")


# --- plain def


async def test_plain_methods_run_on_threads_of_their_own(house):
    seen: list[bool] = []
    main = threading.current_thread()

    class Plain(AgentHandler):
        def init(self, job):
            seen.append(threading.current_thread() is main)
            return None, {}, {}

        def run(self, job):
            seen.append(threading.current_thread() is main)
            job.services.emit("hello", n=1)
            return {}

        def eval(self, job):
            seen.append(threading.current_thread() is main)
            return {"reward": 1.0}

        def final_result(self, job):
            seen.append(threading.current_thread() is main)
            return job.eval_output

    async with house(Plain) as h:
        result = await h.run("plain", job_id="p")
        kinds = [event.kind async for event in h.pipeline.watch("p")]
    assert (result.status, result.reward) == ("completed", 1.0)
    assert seen == [False] * 4
    assert "hello" in kinds


async def test_a_plain_method_may_hand_back_a_coroutine(house):
    class Half(Base):
        def run(self, job):
            async def later():
                await asyncio.sleep(0)
                return {"later": True}

            return later()

        async def eval(self, job):
            return {"reward": float(job.run_output["later"])}

    async with house(Half) as h:
        assert (await h.run("half")).reward == 1.0


async def test_a_thread_that_does_not_end_is_abandoned(house):
    release = threading.Event()

    class Stuck(Base):
        def run(self, job):
            release.wait()
            return {}

    try:
        async with house(Stuck, settings=PipelineSettings(run_workers=1)) as h:
            result = await h.run("stuck", budgets=Budgets(run_s=0.05))
            assert (result.status, result.error.kind) == ("timed_out", "timeout")
            assert (await h.run()).status == "completed"  # the worker is free
            assert h.pipeline.status().abandoned == {"stuck": 1}
    finally:
        release.set()


async def test_a_handler_that_swallows_its_cancellation_is_abandoned(house):
    release = asyncio.Event()

    class Deaf(Base):
        async def run(self, job):
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue
            with pytest.raises(Exception, match="ended"):
                await job.services.sandbox(SandboxSpec())
            return {}

    async with house(Deaf, settings=PipelineSettings(run_workers=1, cancel_grace_s=0.02)) as h:
        result = await h.run("deaf", budgets=Budgets(run_s=0.05))
        assert (result.status, result.error.code) == ("timed_out", "run_budget")
        assert (await h.run()).status == "completed"
        assert h.pipeline.status().abandoned == {"deaf": 1}
        release.set()
        await asyncio.sleep(0.01)
        assert h.boxes.started == []


# --- budgets


@pytest.mark.parametrize(("stage", "masked"), [("init", True), ("run", False), ("eval", True)])
async def test_a_budget_per_stage(house, stage, masked):
    class Slow(Base):
        async def init(self, job):
            await self.wait(stage == "init")
            return None, {}, {}

        async def run(self, job):
            await self.wait(stage == "run")
            return {}

        async def eval(self, job):
            await self.wait(stage == "eval")
            return {"reward": 1.0}

        async def wait(self, forever):
            if forever:
                await asyncio.Event().wait()

    async with house(Slow, settings=PipelineSettings(budgets=BudgetSettings(**{f"{stage}_s": 0.05}))) as h:
        result = await h.run("slow")
    assert (result.status, result.stage, result.error.kind) == ("timed_out", stage, "timeout")
    assert (result.error.code, result.mask_sample) == (f"{stage}_budget", masked)
    assert getattr(result.timing, stage).worked_s >= 0.05


@pytest.mark.parametrize(
    ("asked", "served", "own", "used"), [(0.05, 30, 30, 0.05), (None, 0.05, 30, 0.05), (None, None, 0.05, 0.05)]
)
async def test_a_budget_is_the_requests_or_the_servers_or_the_domains(house, asked, served, own, used):
    class Slow(Base):
        async def run(self, job):
            await asyncio.Event().wait()

    record = HandlerRecord(name="own", factory=Slow, summary="slow by nature", budgets=Budgets(run_s=own))
    settings = PipelineSettings(budgets=BudgetSettings(run_s=served))
    async with house(settings=settings, records=(record,)) as h:
        result = await h.run("own", budgets=Budgets(run_s=asked))
    assert (result.status, result.error.code) == ("timed_out", "run_budget")
    assert f"{used:g} s" in result.error.message


async def test_waiting_for_a_turn_is_not_work(house):
    turn = asyncio.Semaphore(1)

    class Turns(Base):
        async def eval(self, job):
            with job.services.waiting():
                await turn.acquire()
            try:
                await asyncio.sleep(0.4)
            finally:
                turn.release()
            return {"reward": 1.0}

    async with house(Turns, settings=PipelineSettings(budgets=BudgetSettings(eval_s=2))) as h:
        results = await asyncio.gather(*(h.run("turns") for _ in range(8)))
    assert [result.status for result in results] == ["completed"] * 8
    assert max(result.timing.eval.worked_s for result in results) < 2


async def test_the_total_budget_counts_all_stages(house):
    class Slow(Base):
        grades_unfinished_runs = True

        async def init(self, job):
            await asyncio.sleep(0.1)
            return None, {}, {}

        async def run(self, job):
            await asyncio.sleep(30)

    async with house(Slow) as h:
        result = await h.run("slow", budgets=Budgets(total_s=1.0))
    assert (result.status, result.stage, result.error.code) == ("timed_out", "run", "total_budget")
    assert result.timing.init.worked_s >= 0.1


async def test_waiting_in_a_queue_costs_nothing(house):
    gate = asyncio.Event()

    class Waits(Base):
        async def run(self, job):
            if job.instance.get("holds"):
                await gate.wait()
            return {}

    async with house(Waits, settings=PipelineSettings(run_workers=1)) as h:
        first = h.pipeline.submit(JobRequest(domain="waits", instance={"holds": True}))
        second = h.pipeline.submit(JobRequest(domain="waits", instance={}, budgets=Budgets(run_s=1.0, total_s=1.0)))
        await asyncio.sleep(1.5)
        gate.set()
        await first.result()
        result = await second.result()
    assert result.status == "completed"
    assert result.timing.run.queued_s >= 1.0
    assert result.timing.run.worked_s < 1.0


async def test_an_unfinished_run_can_be_graded(house):
    class Partial(Base):
        grades_unfinished_runs = True

        async def run(self, job):
            await asyncio.Event().wait()

        async def run_exception(self, job, exc):
            return {"so_far": 0.5}

        async def eval(self, job):
            return {"reward": job.run_output["so_far"]}

    async with house(Partial) as h:
        result = await h.run("partial", budgets=Budgets(run_s=0.05))
    assert (result.status, result.stage, result.reward) == ("timed_out", "eval", 0.5)
    assert (result.error.stage, result.mask_sample) == ("run", False)


async def test_a_broken_run_is_not_graded(house):
    class Broken(Base):
        grades_unfinished_runs = True

        async def run(self, job):
            raise SandboxFault("died")

        async def eval(self, job):
            raise AssertionError("a masked sample is not worth grading")

    async with house(Broken) as h:
        result = await h.run("broken")
    assert (result.status, result.stage, result.error.kind) == ("failed", "run", "sandbox")
    assert "pipeline_notes" not in result.metrics


# --- what a job owns


@pytest.mark.parametrize("keeps", [False, True])
async def test_the_runtime_is_released_before_eval_unless_grading_needs_it(house, keeps):
    seen: list[int] = []

    class Boxed(Base):
        grading_needs_runtime = keeps

        async def init(self, job):
            return await job.services.sandbox(SandboxSpec()), {}, {}

        async def eval(self, job):
            seen.append(job.runtime.stopped)
            return {"reward": 1.0}

    async with house(Boxed) as h:
        await h.run("boxed")
        assert [box.stopped for box in h.boxes.started] == [1]
    assert seen == [0 if keeps else 1]


async def test_a_sandbox_that_the_handler_brought_is_stopped_too(house):
    class Own(Base):
        async def init(self, job):
            return await boxes.start(SandboxSpec()), {}, {}

    async with house(Own) as h:
        boxes = h.boxes
        await h.run("own")
        assert [box.stopped for box in boxes.started] == [1]


@pytest.mark.parametrize("failing", ["init", "run", "eval"])
async def test_everything_is_closed_exactly_once_whatever_fails(house, failing):
    closed: list[str] = []

    class Owner(Base):
        grading_needs_runtime = True

        async def init(self, job):
            box = await job.services.sandbox(SandboxSpec())
            job.exit_stack.callback(closed.append, "mine")
            self.fail("init")
            return box, {}, {}

        async def run(self, job):
            self.fail("run")
            return {}

        async def eval(self, job):
            await job.services.sandbox(SandboxSpec())
            self.fail("eval")
            return {"reward": 1.0}

        def fail(self, stage):
            if stage == failing:
                raise ValueError(stage)

    async with house(Owner) as h:
        await h.run("owner")
        assert closed == ["mine"]
        assert all(box.stopped == 1 for box in h.boxes.started)


async def test_a_failure_to_close_is_in_the_metrics(house):
    class Boxed(Base):
        async def init(self, job):
            return await job.services.sandbox(SandboxSpec()), {}, {}

    async with house(Boxed) as h:
        h.boxes.stop_error = OSError("busy")
        result = await h.run("boxed")
    assert (result.status, result.reward) == ("completed", 1.0)
    assert result.metrics["pipeline_notes"] == ["release: SandboxFault: did not stop: box-0: OSError: busy"]


async def test_closing_that_hangs_is_bounded(house):
    class Hangs(Base):
        async def init(self, job):
            job.exit_stack.push_async_callback(asyncio.Event().wait)
            return None, {}, {}

    async with house(Hangs, settings=PipelineSettings(close_s=0.05)) as h:
        result = await h.run("hangs")
    assert result.status == "completed"
    assert "took longer than 0.05 s" in result.metrics["pipeline_notes"][0]


# --- settings


class Knobs(msgspec.Struct, kw_only=True):
    turns: int = 3
    name: str = "x"


async def test_a_jobs_settings_lie_over_the_servers(house):
    seen: list[Any] = []

    class Tuned(Base):
        async def run(self, job):
            seen.append(job.settings)
            return {}

    record = HandlerRecord(name="tuned", factory=Tuned, summary="s", settings=Knobs)
    async with house(records=(record,), tables={"tuned": {"turns": 5}}) as h:
        await h.run("tuned")
        await h.run("tuned", settings={"name": "y"})
    assert seen == [Knobs(turns=5), Knobs(turns=5, name="y")]


async def test_an_eval_that_raises_a_grader_fault(house):
    class Broke(Base):
        async def eval(self, job):
            raise GraderFault("the checker crashed", code="crash")

    async with house(Broke) as h:
        result = await h.run("broke")
    assert (result.error.kind, result.error.code, result.mask_sample) == ("grader", "crash", True)


async def test_waiting_for_an_llm_server_is_not_work(house):
    class Talks(Base):
        async def run(self, job):
            await job.services.chat().open([])
            return {}

    async with house(Talks) as h:
        result = await h.run("talks", backend_wait_s=1.5, budgets=Budgets(run_s=1.0))
    assert (result.status, result.error.kind, result.error.code) == ("failed", "model", "no_backend")
    assert result.timing.run.worked_s < 1.0
    assert result.timing.total_s >= 1.5


async def test_two_chats_share_the_jobs_lease_and_both_are_in_the_trajectory(house):
    class Talks(Base):
        async def run(self, job):
            first, second = job.services.chat(), job.services.chat()
            first.note("one")
            second.note("two")
            return {}

    async with house(Talks) as h:
        result = await h.run("talks")
    assert result.trajectory.notes == ["one", "two"]
    assert result.policy_versions == []


async def test_an_unknown_tool_is_the_tasks_fault(house):
    class Tooled(Base):
        async def init(self, job):
            job.services.tools(("hammer",))
            return None, {}, {}

    async with house(Tooled) as h:
        result = await h.run("tooled")
    assert result.error.kind == "task"
    assert "hammer" in result.error.message


async def test_an_error_of_the_pipelines_own_still_ends_in_a_result(house, monkeypatch):
    class Plain(Base):
        pass

    async with house(Plain, settings=PipelineSettings(run_workers=1)) as h:
        monkeypatch.setattr("prorl.pipeline.course.keep_output", lambda *_: 1 / 0)
        result = await h.run("plain")
        monkeypatch.undo()
        assert (result.status, result.error.kind, result.mask_sample) == ("failed", "internal", True)
        assert "ZeroDivisionError" in result.error.message
        assert (await h.run("plain")).status == "completed"


async def test_a_job_that_cancels_itself(house):
    class Quits(Base):
        async def run(self, job):
            pipelines[0].cancel(job_ids=[job.id])
            return {}

    pipelines: list[Any] = []
    async with house(Quits, settings=PipelineSettings(run_workers=1)) as h:
        pipelines.append(h.pipeline)
        assert (await h.run("quits")).status == "cancelled"
        assert (await h.run()).status == "completed"
