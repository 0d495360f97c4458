"""Pipelines over hand-made handlers; the registry is built by hand, everything else is the real thing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from prorl.api import AgentHandler, HandlerRecord, Job, SandboxSpec
from prorl.llm.pool import BackendPool
from prorl.pipeline.pipeline import Pipeline
from prorl.pipeline.settings import PipelineSettings
from prorl.plugins.registry import Registry
from prorl.wire import JobRequest, RolloutResult


class Box:
    """A sandbox that only remembers how often it was stopped."""

    runtime = "box"
    workdir = "/workspace"

    def __init__(self, number: int, *, stop_error: Exception | None = None) -> None:
        self.id = f"box-{number}"
        self.stopped = 0
        self._stop_error = stop_error

    async def act(self, action: str, arguments: Any, *, timeout: float, on_output: Any = None) -> Any:
        raise NotImplementedError

    async def stop(self, *, grace: float = 0.5) -> None:
        self.stopped += 1
        if self._stop_error is not None:
            raise self._stop_error


class Boxes:
    """Starts boxes; ``gate`` holds back starts until it is set."""

    def __init__(self) -> None:
        self.started: list[Box] = []
        self.stop_error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def start(self, spec: SandboxSpec, runtime: str | None = None) -> Box:
        await self.gate.wait()
        box = Box(len(self.started), stop_error=self.stop_error)
        self.started.append(box)
        return box


class Echo(AgentHandler):
    """Grades what the instance says: the plainest handler there is."""

    async def init(self, job: Job) -> Any:
        return None, {}, {}

    async def run(self, job: Job) -> dict[str, Any]:
        return {"said": job.instance.get("say")}

    async def eval(self, job: Job) -> dict[str, Any]:
        return {"reward": job.instance.get("reward", 1.0)}


class House:
    """A pipeline and what it stands on. ``run`` submits an instance and waits for its result."""

    def __init__(self, pipeline: Pipeline, pool: BackendPool, boxes: Boxes) -> None:
        self.pipeline = pipeline
        self.pool = pool
        self.boxes = boxes

    async def run(self, domain: str = "echo", **fields: Any) -> RolloutResult:
        handle = self.pipeline.submit(JobRequest(domain=domain, instance=fields.pop("instance", {}), **fields))
        async with asyncio.timeout(30):
            return await handle.result()


MakeHouse = Callable[..., Any]


@pytest.fixture
def house() -> MakeHouse:
    """``async with house(MyHandler, settings=PipelineSettings(...)) as h``: handlers are known by lower-case name.
    ``house.Echo`` is one to inherit what a test does not say from."""

    @asynccontextmanager
    async def make(
        *handlers: type[AgentHandler],
        settings: PipelineSettings | None = None,
        records: tuple[HandlerRecord, ...] = (),
        tables: dict[str, Any] | None = None,
    ) -> AsyncIterator[House]:
        offered = [
            HandlerRecord(name=kind.__name__.lower(), factory=kind, summary="made for a test")
            for kind in (Echo, *handlers)
        ]
        registry = Registry(handlers={record.name: record for record in (*offered, *records)})
        pool, boxes = BackendPool({}), Boxes()
        pipeline = Pipeline(registry, pool, boxes, settings, tables=tables, server="here")
        await pipeline.open()
        pipeline.start()
        try:
            yield House(pipeline, pool, boxes)
        finally:
            await pipeline.close()
            await pool.close()

    make.Echo = Echo  # type: ignore[attr-defined]
    return make


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """``await until(lambda: ...)``: wait for a condition instead of for a time."""
    return wait_until


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - any condition, not only ours
            await asyncio.sleep(0.005)
