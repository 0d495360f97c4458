"""Cancelling and stopping: in the queue, in every stage, and of the whole server."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from typing import Any

import pytest

from prorl.api import AgentHandler, Job, SandboxSpec
from prorl.pipeline.errors import NotAccepting
from prorl.pipeline.settings import PipelineSettings
from prorl.wire import Budgets, JobRequest


class Gate(AgentHandler):
    """Waits for ever in the stage that ``instance["at"]`` names."""

    async def init(self, job: Job) -> Any:
        box = await job.services.sandbox(SandboxSpec())
        await self.wait(job, "init")
        return box, {}, {}

    async def run(self, job: Job) -> dict[str, Any]:
        await self.wait(job, "run")
        return {}

    async def eval(self, job: Job) -> dict[str, Any]:
        await self.wait(job, "eval")
        return {"reward": 1.0}

    async def run_exception(self, job: Job, exc: BaseException) -> dict[str, Any]:
        raise AssertionError("a cancelled job asks its handler nothing")

    async def wait(self, job: Job, stage: str) -> None:
        if job.instance.get("at") == stage:
            job.services.emit("inside", stage=stage)
            await asyncio.Event().wait()


def request(at: str | None = None, **fields: Any) -> JobRequest:
    return JobRequest(domain="gate", instance={"at": at}, **fields)


async def inside(h: Any, job_id: str) -> None:
    async for event in h.pipeline.watch(job_id):
        if event.kind == "inside":
            return


@pytest.mark.parametrize("stage", ["init", "run", "eval"])
async def test_cancel_in_a_stage_frees_the_worker(house, stage):
    one = PipelineSettings(init_workers=1, run_workers=1, eval_workers=1)
    async with house(Gate, settings=one) as h:
        handle = h.pipeline.submit(request(stage, job_id="a"))
        await inside(h, "a")
        assert h.pipeline.cancel(job_ids=["a"]).cancelled == ["a"]
        result = await asyncio.wait_for(handle.result(), 30)
        assert (result.status, result.stage, result.error.kind) == ("cancelled", stage, "cancelled")
        assert (result.mask_sample, result.reward) == (True, 0.0)
        assert [box.stopped for box in h.boxes.started] == [1]
        assert (await asyncio.wait_for(h.pipeline.submit(request()).result(), 30)).status == "completed"
        assert h.pipeline.cancel(job_ids=["a", "b"]).unknown == ["b"]
        assert h.pipeline.status().jobs["cancelled"] == 1


async def test_cancel_in_the_first_queue_never_calls_the_handler(house):
    async with house(Gate, settings=PipelineSettings(init_workers=1)) as h:
        h.pipeline.submit(request("init", job_id="first"))
        await inside(h, "first")
        queued = h.pipeline.submit(request(job_id="queued"))
        assert h.pipeline.job("queued").state == "queued"
        h.pipeline.cancel(job_ids=["queued"])
        result = await asyncio.wait_for(queued.result(), 30)
        assert (result.status, result.stage) == ("cancelled", "init")
        assert len(h.boxes.started) == 1
        assert h.pipeline.status().stages["init"].queued == 0


@pytest.mark.parametrize("stage", ["run", "eval"])
async def test_cancel_in_a_later_queue_closes_what_the_job_owns(house, until, stage):
    settings = PipelineSettings(run_workers=1, eval_workers=1)
    async with house(Gate, settings=settings) as h:
        h.pipeline.submit(request(stage, job_id="first"))
        await inside(h, "first")
        queued = h.pipeline.submit(request(job_id="queued"))
        await until(lambda: h.pipeline.status().stages[stage].queued == 1)
        view = h.pipeline.job("queued")
        assert (view.state, view.stage) == ("queued", stage)
        h.pipeline.cancel(job_ids=["queued"])
        result = await asyncio.wait_for(queued.result(), 30)
        assert (result.status, result.stage) == ("cancelled", stage)
        assert h.boxes.started[1].stopped == 1


async def test_cancel_while_the_sandbox_is_being_made(house, until):
    async with house(Gate) as h:
        h.boxes.gate.clear()
        handle = h.pipeline.submit(request(job_id="a"))
        await until(lambda: h.pipeline.status().stages["init"].busy == 1)
        h.pipeline.cancel(job_ids=["a"])
        assert (await asyncio.wait_for(handle.result(), 30)).status == "cancelled"
        h.boxes.gate.set()
        await asyncio.sleep(0.01)
        assert all(box.stopped for box in h.boxes.started)


async def test_cancel_a_group(house, until):
    async with house(Gate) as h:
        handles = [h.pipeline.submit(request("run", job_id=f"j{n}", group_id=f"g{n % 2}")) for n in range(6)]
        assert sorted(h.pipeline.cancel(group_id="g1").cancelled) == ["j1", "j3", "j5"]
        for handle in handles[1::2]:
            assert (await asyncio.wait_for(handle.result(), 30)).status == "cancelled"
        await until(lambda: h.pipeline.status().stages["run"].busy == 3)
        assert len(h.pipeline.cancel(everything=True).cancelled) == 3


async def test_cancelling_twice_counts_once(house):
    async with house(Gate) as h:
        h.pipeline.submit(request("run", job_id="a"))
        await inside(h, "a")
        assert h.pipeline.cancel(job_ids=["a"]).cancelled == ["a"]
        assert h.pipeline.cancel(job_ids=["a"]).cancelled == []


async def test_a_waiter_that_gives_up_cancels_nothing(house):
    async with house(Gate) as h:
        handle = h.pipeline.submit(request("run", job_id="a"))
        await inside(h, "a")
        waiter = asyncio.create_task(handle.result())
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        assert h.pipeline.job("a").state == "running"


async def test_stop_delivers_every_result(house, until):
    async with house(Gate, settings=PipelineSettings(run_workers=2)) as h:
        handles = [h.pipeline.submit(request("run")) for _ in range(8)]
        await until(lambda: h.pipeline.status().stages["run"].busy == 2)
        assert await h.pipeline.stop()
        assert not await h.pipeline.stop()
        assert [(await handle.result()).status for handle in handles] == ["cancelled"] * 8
        with pytest.raises(NotAccepting, match="POST /start"):
            h.pipeline.submit(request())
        assert h.pipeline.start()
        assert not h.pipeline.start()
        assert (await h.pipeline.submit(request()).result()).status == "completed"


async def test_drain_lets_jobs_finish(house, until):
    release = asyncio.Event()

    class Slow(Gate):
        async def wait(self, job: Job, stage: str) -> None:
            if stage == "run":
                await release.wait()

    async with house(Slow, settings=PipelineSettings(run_workers=1)) as h:
        handles = [h.pipeline.submit(JobRequest(domain="slow", instance={})) for _ in range(3)]
        stopping = asyncio.create_task(h.pipeline.stop(drain=True, timeout_s=60))
        await until(lambda: not h.pipeline.accepting)
        release.set()
        assert await stopping
        assert [(await handle.result()).status for handle in handles] == ["completed"] * 3


async def test_drain_cancels_what_is_left_at_its_end(house):
    async with house(Gate) as h:
        handle = h.pipeline.submit(request("run"))
        assert await h.pipeline.stop(drain=True, timeout_s=0.05)
        assert (await handle.result()).status == "cancelled"


async def test_a_start_calls_a_drain_off(house, until):
    async with house(Gate) as h:
        h.pipeline.submit(request("run", job_id="a"))
        stopping = asyncio.create_task(h.pipeline.stop(drain=True, timeout_s=60))
        await until(lambda: not h.pipeline.accepting)
        h.pipeline.start()
        assert await asyncio.wait_for(stopping, 30)
        assert h.pipeline.job("a").state in ("queued", "running")


async def test_cancelling_thousands_in_the_queue_is_quick_and_leaves_nothing(house):
    async with house(Gate, settings=PipelineSettings(init_workers=1)) as h:
        h.pipeline.submit(request("init", job_id="first"))
        await inside(h, "first")
        for n in range(3000):
            h.pipeline.submit(request(job_id=f"j{n}", group_id="g"))
        started = time.monotonic()
        assert len(h.pipeline.cancel(group_id="g").cancelled) == 3000
        assert time.monotonic() - started < 20
        assert h.pipeline.status().stages["init"].queued == 0
        assert h.pipeline.status().jobs["cancelled"] == 3000


@pytest.mark.parametrize("seed", range(4))
async def test_cancels_at_any_moment_lose_nothing_and_leak_nothing(house, until, seed):
    """Jobs of every temper, cancelled at random points of their course."""
    chance = random.Random(seed)

    class Temper(AgentHandler):
        grades_unfinished_runs = True

        async def init(self, job: Job) -> Any:
            box = await job.services.sandbox(SandboxSpec())
            await self.act(job)
            return box, {}, {}

        async def run(self, job: Job) -> dict[str, Any]:
            await self.act(job)
            return {}

        def eval(self, job: Job) -> dict[str, Any]:
            return {"reward": 1.0}

        async def run_exception(self, job: Job, exc: BaseException) -> dict[str, Any]:
            await asyncio.sleep(0.001)
            return {}

        async def act(self, job: Job) -> None:
            match job.instance["temper"]:
                case "slow":
                    await asyncio.sleep(0.02)
                case "fails":
                    raise ValueError("bad temper")
                case "deaf":
                    for _ in range(3):
                        with suppress(asyncio.CancelledError):
                            await asyncio.sleep(0.05)
                case "ticks":
                    for _ in range(20):
                        await asyncio.sleep(0)

    settings = PipelineSettings(init_workers=4, run_workers=4, eval_workers=2, ahead=3, cancel_grace_s=0.01)
    async with house(Temper, settings=settings) as h:
        handles = []
        for number in range(120):
            temper = chance.choice(["slow", "fails", "deaf", "ticks", "plain"])
            budgets = Budgets(run_s=chance.choice([0.005, 5.0]))
            handles.append(
                h.pipeline.submit(
                    JobRequest(domain="temper", instance={"temper": temper}, job_id=f"j{number}", budgets=budgets)
                )
            )
            if chance.random() < 0.5:
                h.pipeline.cancel(job_ids=[f"j{chance.randrange(number + 1)}"])
            if chance.random() < 0.5:
                await asyncio.sleep(chance.choice([0, 0, 0.002]))
        async with asyncio.timeout(60):
            results = [await handle.result() for handle in handles]
        assert [result.job_id for result in results] == [f"j{number}" for number in range(120)]
        assert all(result.error is not None or result.status == "completed" for result in results)
        assert not any(result.error and result.error.kind == "internal" for result in results)
        status = h.pipeline.status()
        assert all(stage.busy == stage.queued == 0 for stage in status.stages.values())
        assert status.jobs["queued"] == status.jobs["running"] == 0
        await until(lambda: all(box.stopped == 1 for box in h.boxes.started))
