"""Budgets: whose holds, what counts as work, and what becomes of a run that used its own up."""

from __future__ import annotations

import asyncio

import pytest

from prorl.api import HandlerRecord, SandboxFault
from prorl.pipeline.settings import BudgetSettings, PipelineSettings
from prorl.wire import Budgets, JobRequest


@pytest.mark.parametrize(("stage", "masked"), [("init", True), ("run", False), ("eval", True)])
async def test_a_budget_per_stage(house, stage, masked):
    class Slow(house.Echo):
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
    class Slow(house.Echo):
        async def run(self, job):
            await asyncio.Event().wait()

    record = HandlerRecord(name="own", factory=Slow, summary="slow by nature", budgets=Budgets(run_s=own))
    settings = PipelineSettings(budgets=BudgetSettings(run_s=served))
    async with house(settings=settings, records=(record,)) as h:
        result = await h.run("own", budgets=Budgets(run_s=asked))
    assert (result.status, result.error.code) == ("timed_out", "run_budget")
    assert f"{used:g} s" in result.error.message


async def test_what_a_cut_run_left_is_fetched_on_a_budget_of_its_own(house, until):
    """The domain's own is used beyond the limit that cuts others' callbacks; the request's counts before it."""
    fetching, go_on = [], asyncio.Event()

    class Left(house.Echo):
        grades_unfinished_runs = True

        async def run(self, job):
            await asyncio.Event().wait()

        async def run_exception(self, job, exc):
            fetching.append(job.id)
            await go_on.wait()
            return {"left": "a patch"}

        async def eval(self, job):
            return {"reward": float(job.run_output.get("left") == "a patch")}

    own = HandlerRecord(name="own", factory=Left, summary="leaves much", budgets=Budgets(collect_s=600))
    settings = PipelineSettings(callback_s=0.02, budgets=BudgetSettings(run_s=0.01, total_s=30))
    async with house(Left, settings=settings, records=(own,)) as h:
        patient = asyncio.create_task(h.run("own"))
        await until(lambda: len(fetching) == 1)
        cut = await h.run("left")  # began to fetch later, and was told that its time is up: the first one's is not
        hasty = await h.run("own", budgets=Budgets(collect_s=0.03))
        assert not patient.done()
        go_on.set()
        kept = await patient
    for result, seconds in ((cut, 0.02), (hasty, 0.03)):
        assert (result.status, result.reward) == ("timed_out", 0.0)
        [note] = result.metrics["pipeline_notes"]
        assert note == f"run_exception: BudgetExceeded: took longer than {seconds:g} s"
    assert (kept.status, kept.reward, kept.metrics) == ("timed_out", 1.0, {})
    assert kept.error.code == "run_budget"


async def test_the_total_budget_counts_all_stages(house):
    class Slow(house.Echo):
        grades_unfinished_runs = True

        async def init(self, job):
            await asyncio.sleep(0.1)
            return None, {}, {}

        async def run(self, job):
            await asyncio.sleep(30)

    async with house(Slow) as h:
        result = await h.run("slow", budgets=Budgets(total_s=2.0))
    assert (result.status, result.stage, result.error.code) == ("timed_out", "run", "total_budget")
    assert result.timing.init.worked_s >= 0.1


async def test_waiting_for_a_turn_is_not_work(house, until):
    turn, waiting = asyncio.Lock(), []

    class Turns(house.Echo):
        async def eval(self, job):
            with job.services.waiting():
                waiting.append(job.id)
                async with turn:
                    pass
            return {"reward": 1.0}

    async with house(Turns, settings=PipelineSettings(budgets=BudgetSettings(eval_s=1.0))) as h:
        async with turn:
            jobs = [asyncio.create_task(h.run("turns")) for _ in range(8)]
            await until(lambda: len(waiting) == 8)
            await asyncio.sleep(1.5)  # more than the budget
        results = await asyncio.gather(*jobs)
    assert [result.status for result in results] == ["completed"] * 8
    assert max(result.timing.eval.worked_s for result in results) < 1.0


async def test_waiting_in_a_queue_costs_nothing(house):
    gate = asyncio.Event()

    class Waits(house.Echo):
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


async def test_waiting_for_an_llm_server_is_not_work(house):
    class Talks(house.Echo):
        async def run(self, job):
            await job.services.chat().open([])
            return {}

    async with house(Talks) as h:
        result = await h.run("talks", backend_wait_s=1.5, budgets=Budgets(run_s=1.0))
    assert (result.status, result.error.kind, result.error.code) == ("failed", "model", "no_backend")
    assert result.timing.run.worked_s < 1.0
    assert result.timing.total_s >= 1.5


async def test_an_unfinished_run_can_be_graded(house):
    class Partial(house.Echo):
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
    class Broken(house.Echo):
        grades_unfinished_runs = True

        async def run(self, job):
            raise SandboxFault("died")

        async def eval(self, job):
            raise AssertionError("a masked sample is not worth grading")

    async with house(Broken) as h:
        result = await h.run("broken")
    assert (result.status, result.stage, result.error.kind) == ("failed", "run", "sandbox")
    assert "pipeline_notes" not in result.metrics
