"""Handlers that do what nobody should: each of their jobs still ends, once, with a result that any client can read."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import msgspec
import pytest

from prorl.api import ConfigError, SandboxSpec, TaskFault
from prorl.pipeline.settings import PipelineSettings
from prorl.wire import JobRequest, RolloutResult


class Anything(BaseException):
    pass


class UnshowableError(Exception):
    def __str__(self) -> str:
        raise Anything


class EvilFloat(float):
    def __float__(self) -> float:
        raise Anything


class EvilDict(dict[str, Any]):
    def __contains__(self, key: object) -> bool:
        sys.exit(1)

    def get(self, *_: Any) -> Any:
        raise Anything


class EvilTuple(tuple[Any, ...]):
    def __len__(self) -> int:
        raise Anything


@pytest.mark.parametrize("where", ["init", "run", "eval"])
async def test_an_exception_whose_text_raises_what_is_no_exception(house, where):
    class Odd(house.Echo):
        pass

    async def fail(self, job):
        raise UnshowableError

    setattr(Odd, where, fail)
    async with house(Odd) as h:
        result = await h.run("odd")
        assert (result.status, result.stage, result.mask_sample) == ("failed", where, True)


@pytest.mark.parametrize("verdict", [{"reward": EvilFloat(1)}, EvilDict(reward=1.0), {"reward": 1, "metrics": 5}])
async def test_a_verdict_that_raises_when_it_is_read(house, verdict):
    class Odd(house.Echo):
        async def eval(self, job):
            return verdict

    async with house(Odd, settings=PipelineSettings(eval_workers=1)) as h:
        results = [await h.run("odd") for _ in range(2)]
        assert all(result.status in ("failed", "completed") for result in results)
        assert h.pipeline.status().jobs["running"] == 0


async def test_an_output_that_raises_when_it_is_looked_at(house):
    class Odd(house.Echo):
        async def init(self, job):
            return EvilTuple((None, {}, {}))

    async with house(Odd, settings=PipelineSettings(init_workers=1)) as h:
        for _ in range(2):
            assert (await h.run("odd")).status == "failed"


@pytest.mark.parametrize("what", ["exit_stack", "services", "request", "eval_output", "runtime", "id"])
async def test_a_handler_that_overwrites_its_job(house, what):
    class Odd(house.Echo):
        async def run(self, job):
            await job.services.sandbox(SandboxSpec())
            setattr(job, what, None)
            return {}

    async with house(Odd) as h:
        result = await h.run("odd")
        assert result.job_id
        assert [box.stopped for box in h.boxes.started] == [1]


@pytest.mark.parametrize(
    ("kind", "data"), [("x", {"n": 2**70}), ("\ud800", {}), ("x", {"n": "\ud800"}), ("x", {"n": 10**5000})]
)
async def test_events_that_do_not_fit_msgpack(house, kind, data):
    class Odd(house.Echo):
        async def run(self, job):
            job.services.emit(kind, **data)
            return {}

    async with house(Odd) as h:
        result = await h.run("odd")
        assert result.status == "completed"
        events = [event async for event in h.pipeline.watch(result.job_id)]
        assert events[-1].kind == "job.ended"
        for event in events:
            msgspec.json.encode(event)


@pytest.mark.parametrize("code", [404, "\ud800", object()])
async def test_a_code_that_is_no_slug(house, code):
    class Odd(house.Echo):
        async def run(self, job):
            raise TaskFault("no", code=code)

    async with house(Odd) as h:
        result = await h.run("odd")
        assert (result.status, result.error.kind, result.error.message) == ("failed", "task", "no")


async def test_a_fault_of_a_kind_that_nobody_knows(house):
    class Strange(TaskFault):
        kind: Any = "strange"
        masks: Any = "yes"

    class Odd(house.Echo):
        async def run(self, job):
            raise Strange("no")

    async with house(Odd) as h:
        result = await h.run("odd")
        assert (result.error.kind, result.error.message, result.mask_sample) == ("internal", "no", True)


async def test_metrics_that_only_look_like_json(house):
    class Odd(house.Echo):
        async def eval(self, job):
            metrics = {"raw": msgspec.Raw(b"}, nonsense"), "big": 2**70, "good": [1]}
            return {"reward": 1.0, "metrics": metrics, "artifacts": {"raw": msgspec.Raw(b"[1]")}}

    async with house(Odd) as h:
        result = await h.run("odd")
        assert (result.reward, result.metrics["good"], result.artifacts) == (1.0, [1], {"raw": [1]})
        assert len(result.metrics["pipeline_notes"]) == 2
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(result), type=RolloutResult) == result


@pytest.mark.parametrize("stage", ["init", "run", "eval"])
async def test_a_stage_that_cancels_its_own_task_and_returns(house, stage):
    class Odd(house.Echo):
        pass

    async def cancel_and_return(self, job):
        asyncio.current_task().cancel()
        return await getattr(house.Echo, stage)(self, job)

    setattr(Odd, stage, cancel_and_return)
    async with house(Odd) as h:
        result = await h.run("odd")
        assert (result.status, result.reward) == ("completed", 1.0)


async def test_an_instance_that_is_not_json(house):
    deep: Any = {}
    for _ in range(5000):
        deep = {"a": deep}
    async with house() as h:
        for instance in ({"a": msgspec.msgpack.Ext(5, b"x")}, {"a": {None: 1}}, deep):
            with pytest.raises(ConfigError, match="JSON"):
                h.pipeline.submit(JobRequest(domain="echo", instance=instance))
