"""A rollout server's LLM servers are set right by what it has now, not by what it had when it was asked."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from prorl.client import RolloutClient
from prorl.client.member import Member
from prorl.testing.lab import Lab
from prorl.wire import BackendSpec, BackendStatus
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
