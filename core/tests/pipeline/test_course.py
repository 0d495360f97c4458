"""A job's course through the stages: what is called when, and what the result says."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from prorl.api import AgentHandler, HandlerRecord
from prorl.pipeline.settings import PipelineSettings
from prorl.wire import JobRequest


async def test_a_rollout_that_goes_well(house):
    class Full(AgentHandler):
        async def init(self, job):
            return None, {"m": 1}, {"c": 2}

        async def run(self, job):
            return {"ran": True}

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

    class Fails(house.Echo):
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


async def test_final_result_has_the_last_word(house):
    class Last(house.Echo):
        async def final_result(self, job):
            return {**job.eval_output, "reward": 0.25, "mask_sample": True}

    async with house(Last) as h:
        result = await h.run("last")
    assert (result.reward, result.mask_sample, result.status) == (0.25, True, "completed")


async def test_a_result_is_not_changed_by_the_handler_afterwards(house):
    kept: dict[str, Any] = {"n": [1]}

    class Keeps(house.Echo):
        async def eval(self, job):
            return {"reward": 1.0, "metrics": kept}

    async with house(Keeps) as h:
        handle = h.pipeline.submit(JobRequest(domain="keeps", instance={}))
        await handle.result_json()
        kept["n"].append(2)
        assert (await handle.result()).metrics == {"n": [1]}


class Knobs(msgspec.Struct, kw_only=True):
    turns: int = 3
    name: str = "x"


async def test_a_jobs_settings_lie_over_the_servers(house):
    seen: list[Any] = []

    class Tuned(house.Echo):
        async def run(self, job):
            seen.append(job.settings)
            return {}

    record = HandlerRecord(name="tuned", factory=Tuned, summary="s", settings=Knobs)
    async with house(records=(record,), tables={"tuned": {"turns": 5}}) as h:
        await h.run("tuned")
        await h.run("tuned", settings={"name": "y"})
    assert seen == [Knobs(turns=5), Knobs(turns=5, name="y")]


async def test_two_chats_share_the_jobs_lease_and_both_are_in_the_trajectory(house):
    class Talks(house.Echo):
        async def run(self, job):
            first, second = job.services.chat(), job.services.chat()
            first.note("one")
            second.note("two")
            return {}

    async with house(Talks) as h:
        result = await h.run("talks")
    assert result.trajectory.notes == ["one", "two"]
    assert result.policy_versions == []


async def test_an_error_of_the_pipelines_own_still_ends_in_a_result(house, monkeypatch):
    class Plain(house.Echo):
        pass

    async with house(Plain, settings=PipelineSettings(run_workers=1)) as h:
        monkeypatch.setattr("prorl.pipeline.course.keep_output", lambda *_: 1 / 0)
        result = await h.run("plain")
        monkeypatch.undo()
        assert (result.status, result.error.kind, result.mask_sample) == ("failed", "internal", True)
        assert "ZeroDivisionError" in result.error.message
        assert (await h.run("plain")).status == "completed"


async def test_a_job_that_cancels_itself(house):
    class Quits(house.Echo):
        async def run(self, job):
            pipelines[0].cancel(job_ids=[job.id])
            return {}

    pipelines: list[Any] = []
    async with house(Quits, settings=PipelineSettings(run_workers=1)) as h:
        pipelines.append(h.pipeline)
        assert (await h.run("quits")).status == "cancelled"
        assert (await h.run()).status == "completed"
