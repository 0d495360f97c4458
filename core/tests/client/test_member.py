"""What a fleet makes of one rollout server's status."""

from __future__ import annotations

import asyncio
import threading

import msgspec
import pytest

from prorl.api import AgentHandler, HandlerRecord
from prorl.client import Fleet, FleetSettings, RolloutClient
from prorl.client.member import Member
from prorl.testing.lab import Lab
from prorl.wire import BackendSpec, BackendStatus, JobRequest
from prorl.wire.service import ServiceStatus


class Held(RolloutClient):
    """Hands its first answer on when it is told to."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()
        self.registered: list[str] = []

    async def status(self) -> ServiceStatus:
        found = await super().status()
        self.asked.set()
        await self.go_on.wait()
        return found

    async def add_llm_server(self, backend: BackendSpec | str) -> BackendStatus:
        status = await super().add_llm_server(backend)
        self.registered.append(status.url)
        return status


@pytest.fixture
def lab():
    with Lab(["hello"]) as lab:
        yield lab


async def test_what_was_registered_during_a_check_is_not_registered_again(lab):
    """Anew it would be another one to the server, which ends what runs on the first."""
    spec = BackendSpec(url=lab.engine.url, policy_version="7")
    async with Held(lab.url) as client:
        member = Member(client, frozenset())
        member.managed, member.wanted = True, {spec.url: spec}
        checking = asyncio.create_task(member.check())
        await client.asked.wait()
        async with RolloutClient(lab.url) as other:  # as a fleet does that is told of one meanwhile
            await other.add_llm_server(spec)
        client.go_on.set()
        await checking
        assert (member.alive, client.registered) == (True, [])

        member.wanted = {spec.url: msgspec.structs.replace(spec, policy_version="8")}
        await member.check()
        assert client.registered == [spec.url]


class SlowToGrade(AgentHandler):
    """Grades when it is told to."""

    def __init__(self) -> None:
        self.grading, self.go_on = 0, threading.Event()

    async def init(self, job):
        return None, {}, {}

    async def run(self, job):
        return {}

    async def eval(self, job):
        self.grading += 1
        await asyncio.to_thread(self.go_on.wait)
        return {"reward": 1.0}


@pytest.fixture
def slow():
    handler = SlowToGrade()
    record = HandlerRecord(name="slow", factory=lambda: handler, summary="slow to grade")
    with Lab([], handlers=[record], settings={"pipeline": {"run_workers": 1, "eval_workers": 4}}) as lab:
        yield lab, handler
        handler.go_on.set()


async def test_what_is_graded_takes_no_place_of_what_could_run(slow):
    lab, handler = slow
    async with Fleet(lab.url, FleetSettings(check_s=0.05)) as fleet, asyncio.timeout(60):
        request = JobRequest(domain="slow", instance={})
        running = [asyncio.create_task(fleet.process(request)) for _ in range(6)]
        while handler.grading < 4:  # noqa: ASYNC110 - in the server's thread
            await asyncio.sleep(0.01)
        handler.go_on.set()
        assert [result.reward for result in await asyncio.gather(*running)] == [1.0] * 6
