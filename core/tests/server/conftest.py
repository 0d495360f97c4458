"""A real server on a free port, over hand-made handlers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import msgspec
import pytest

from prorl.api import AgentHandler, HandlerRecord, Job
from prorl.plugins.registry import Registry
from prorl.server.serve import RunningServer
from prorl.server.settings import parse_settings
from prorl.wire import PluginReport


class Knobs(msgspec.Struct, kw_only=True):
    turns: int = 3


class Echo(AgentHandler):
    """Does what the instance says: ``fail``, ``wait`` (until cancelled), ``block_s`` (the loop), ``events``."""

    async def init(self, job: Job) -> Any:
        return None, {}, {}

    async def run(self, job: Job) -> dict[str, Any]:
        asked = job.instance
        for number in range(asked.get("events", 0)):
            job.services.emit("tick", number=number)
        if "fail" in asked:
            raise ValueError(asked["fail"])
        if "chat" in asked:
            await job.services.chat().open([])
        if "block_s" in asked:
            time.sleep(asked["block_s"])  # noqa: ASYNC251 - what a careless handler does
        if asked.get("wait"):
            await asyncio.Event().wait()
        return {}

    async def eval(self, job: Job) -> dict[str, Any]:
        return {"reward": 1.0}


def registry() -> Registry:
    broken = PluginReport(
        name="lost",
        distribution="prorl-lost",
        version="1.0",
        state="import-failed",
        reason="ImportError: no module named lost",
    )
    record = HandlerRecord(name="echo", factory=Echo, summary="echoes", prefixes=("echo/",), settings=Knobs)
    return Registry(reports=[broken], handlers={"echo": record})


@contextmanager
def running(**tables: Any) -> Iterator[httpx.Client]:
    settings = parse_settings({"server": {"port": 0, **tables.pop("server", {})}, **tables})
    with RunningServer(settings, registry()) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with running(server={"body_limit_mb": 1}) as client:
        yield client


@pytest.fixture
def serve() -> Callable[..., Any]:
    """``with serve(server={...}, pipeline={...}) as client``: a server of one's own."""
    return running


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline, "the condition never came true"
            time.sleep(0.01)

    return wait
