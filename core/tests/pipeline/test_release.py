"""What a job owns is closed exactly once, whichever way the job ends."""

from __future__ import annotations

import asyncio

import pytest

from prorl.api import (
    SandboxSpec,
)
from prorl.pipeline.settings import PipelineSettings


@pytest.mark.parametrize("keeps", [False, True])
async def test_the_runtime_is_released_before_eval_unless_grading_needs_it(house, keeps):
    seen: list[int] = []

    class Boxed(house.Echo):
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
    class Own(house.Echo):
        async def init(self, job):
            return await boxes.start(SandboxSpec()), {}, {}

    async with house(Own) as h:
        boxes = h.boxes
        await h.run("own")
        assert [box.stopped for box in boxes.started] == [1]


@pytest.mark.parametrize("failing", ["init", "run", "eval"])
async def test_everything_is_closed_exactly_once_whatever_fails(house, failing):
    closed: list[str] = []

    class Owner(house.Echo):
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
    class Boxed(house.Echo):
        async def init(self, job):
            return await job.services.sandbox(SandboxSpec()), {}, {}

    async with house(Boxed) as h:
        h.boxes.stop_error = OSError("busy")
        result = await h.run("boxed")
    assert (result.status, result.reward) == ("completed", 1.0)
    assert result.metrics["pipeline_notes"] == ["release: SandboxFault: did not stop: box-0: OSError: busy"]


async def test_closing_that_hangs_is_bounded(house):
    class Hangs(house.Echo):
        async def init(self, job):
            job.exit_stack.push_async_callback(asyncio.Event().wait)
            return None, {}, {}

    async with house(Hangs, settings=PipelineSettings(close_s=0.05)) as h:
        result = await h.run("hangs")
    assert result.status == "completed"
    assert "took longer than 0.05 s" in result.metrics["pipeline_notes"][0]
