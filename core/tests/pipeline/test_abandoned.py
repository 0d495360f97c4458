"""Plain methods run on threads of their own; what does not end in its time is left behind, and its worker is free."""

from __future__ import annotations

import asyncio
import threading

from prorl.api import (
    AgentHandler,
    SandboxSpec,
)
from prorl.pipeline.settings import PipelineSettings
from prorl.wire import Budgets


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
    class Half(house.Echo):
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

    class Stuck(house.Echo):
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


async def test_a_handler_that_swallows_its_cancellation_is_abandoned(house, until):
    release, told = asyncio.Event(), []

    class Deaf(house.Echo):
        async def run(self, job):
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue
            try:
                await job.services.sandbox(SandboxSpec())
            except Exception as refusal:
                told.append(str(refusal))
            return {}

    async with house(Deaf, settings=PipelineSettings(run_workers=1, cancel_grace_s=0.02)) as h:
        result = await h.run("deaf", budgets=Budgets(run_s=0.05))
        assert (result.status, result.error.code) == ("timed_out", "run_budget")
        assert (await h.run()).status == "completed"
        assert h.pipeline.status().abandoned == {"deaf": 1}
        release.set()
        await until(lambda: len(told) == 1)
        assert "ended" in told[0]
        assert h.boxes.started == []
