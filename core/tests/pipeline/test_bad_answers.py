"""What a handler raises or returns where an answer is due is data in that job's result."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from prorl.api import (
    ContextOverflow,
    GraderFault,
    ModelFault,
    SandboxFault,
)
from prorl.pipeline.settings import PipelineSettings


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
    class Raises(house.Echo):
        async def run(self, job):
            raise fault

    async with house(Raises) as h:
        result = await h.run("raises")
        assert (await h.run()).status == "completed"
    assert (result.status, result.stage) == ("failed", "run")
    assert (result.error.kind, result.error.code, result.mask_sample) == (kind, code, masked)


async def test_an_eval_that_raises_a_grader_fault(house):
    class Broke(house.Echo):
        async def eval(self, job):
            raise GraderFault("the checker crashed", code="crash")

    async with house(Broke) as h:
        result = await h.run("broke")
    assert (result.error.kind, result.error.code, result.mask_sample) == ("grader", "crash", True)


async def test_an_unknown_tool_is_the_tasks_fault(house):
    class Tooled(house.Echo):
        async def init(self, job):
            job.services.tools(("hammer",))
            return None, {}, {}

    async with house(Tooled) as h:
        result = await h.run("tooled")
    assert result.error.kind == "task"
    assert "hammer" in result.error.message


async def test_an_exception_that_cannot_be_shown(house):
    class RudeError(Exception):
        def __str__(self):
            raise RuntimeError("no")

    class Raises(house.Echo):
        async def run(self, job):
            raise RudeError

        async def eval(self, job):
            return {"reward": 1.0, "metrics": {"\ud800": "\ud800"}}

    async with house(Raises) as h:
        result = await h.run("raises")
        assert result.error.kind == "task"


async def test_lone_surrogates_never_break_a_result(house):
    class Odd(house.Echo):
        async def eval(self, job):
            return {
                "reward": 1.0,
                "reason": "\ud800",
                "metrics": {"\ud800": 1, "b": "\ud800"},
                "artifacts": {"ok": "1"},
            }

    class OddFault(house.Echo):
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
    class Garbage(house.Echo):
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
    class Grader(house.Echo):
        async def eval(self, job):
            return verdict

    async with house(Grader) as h:
        result = await h.run("grader")
    assert (result.status, result.stage, result.error.kind) == ("failed", "eval", "grader")
    assert (result.reward, result.resolved, result.mask_sample) == (0.0, False, True)


async def test_metrics_that_are_not_json_are_left_out_with_a_note(house):
    loop: dict[str, Any] = {}
    loop["self"] = loop

    class Messy(house.Echo):
        async def eval(self, job):
            return {"reward": 1.0, "metrics": {"a": object(), "b": 2, 3: 4, "c": loop}, "artifacts": ["no"]}

    async with house(Messy) as h:
        result = await h.run("messy")
    assert (result.status, result.reward, result.metrics["b"]) == ("completed", 1.0, 2)
    notes = result.metrics["pipeline_notes"]
    assert len(notes) == 4
    assert set(result.metrics) == {"b", "pipeline_notes"}


async def test_callbacks_that_fail_or_hang_are_notes(house):
    class Bad(house.Echo):
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
