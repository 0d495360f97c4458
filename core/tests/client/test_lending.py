"""An engine that a trainer's process hosts is the rollout servers' for as long as the block lasts."""

from __future__ import annotations

import pytest

from prorl.client import RolloutClient, ServiceError
from prorl.client.lending import lent
from prorl.plugins import discover
from prorl.server.serve import RunningServer
from prorl.server.settings import parse_settings
from prorl.testing.scripted import ScriptedEngine
from prorl.wire import BackendSpec


@pytest.fixture
def service():
    with RunningServer(parse_settings({"server": {"port": 0}}), discover()) as server:
        yield server


async def registered(url: str) -> set[str]:
    async with RolloutClient(url) as client:
        return {backend.url for backend in (await client.status()).pool.backends}


async def test_an_engine_is_lent_beside_those_of_others(service):
    with ScriptedEngine(lambda _: "yes") as mine, ScriptedEngine(lambda _: "no") as theirs:
        async with lent(BackendSpec(url=theirs.url), [service.url]):
            async with lent(BackendSpec(url=mine.url), [service.url]) as fleet:
                assert [member.llm_servers for member in fleet.members()] == [(mine.url,)]
                assert await registered(service.url) == {mine.url, theirs.url}
            assert await registered(service.url) == {theirs.url}
        assert await registered(service.url) == set()


async def test_an_engine_that_is_refused_is_not_lent(service):
    with pytest.raises(ServiceError, match="nothing answers"):
        async with lent(BackendSpec(url="http://127.0.0.1:9"), [service.url]):
            pytest.fail("nobody is there")
    assert await registered(service.url) == set()
