"""The same client against the real server: both sides mean the same by every call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from prorl.client import RolloutClient, ServiceError
from prorl.plugins import discover
from prorl.server.serve import RunningServer
from prorl.server.settings import parse_settings
from prorl.testing.scripted import ScriptedEngine
from prorl.wire import BackendSpec, JobRequest

PLAY = Path(__file__).parent.parent / "data" / "plugins" / "play"


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.syspath_prepend(str(PLAY))
    found = [metadata.distribution("prorl"), *metadata.distributions(path=[str(PLAY)])]
    with RunningServer(parse_settings({"server": {"port": 0}}), discover(distributions=found)) as running:
        yield running.url


@pytest.fixture
async def server(url):
    async with RolloutClient(url, give_up_s=30) as client:
        yield client


def play(**row: object) -> JobRequest:
    return JobRequest(instance=row, domain="play")


async def test_process_submit_wait_and_events(server):
    assert (await server.process(play(reward=0.5))).reward == 0.5
    view = await server.submit(play(reward=1.0))
    result = await server.wait(view.job_id, timeout_s=60)
    assert (result.job_id, result.resolved) == (view.job_id, True)
    events = [event async for event in server.events(view.job_id)]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert {event.job_id for event in events} == {view.job_id}
    assert [event async for event in server.events(view.job_id, after=len(events) - 1)] == events[-1:]


async def test_events_while_it_runs(server, tmp_path):
    view = await server.submit(play(reward=1.0, gate=str(tmp_path / "gate")))
    seen = []
    async for event in server.events(view.job_id):
        seen.append(event.seq)
        (tmp_path / "gate").touch()  # only now can it end
    assert len(seen) > 1
    assert (await server.job(view.job_id)).state == "completed"


async def test_cancel(server, tmp_path):
    view = await server.submit(play(gate=str(tmp_path / "never")))
    assert (await server.cancel(view.job_id)).cancelled == [view.job_id]
    assert (await server.wait(view.job_id, timeout_s=60)).status == "cancelled"
    with pytest.raises(ServiceError) as caught:
        await server.cancel("stranger")
    assert caught.value.status == 404


async def test_stop_and_start(server):
    assert (await server.status()).accepting
    stopped = await server.stop(drain=True, timeout_s=10)
    assert (stopped.changed, stopped.accepting) == (True, False)
    waiting = asyncio.create_task(server.process(play(reward=1.0)))  # told to come again later, and does
    assert (await server.start()).accepting
    assert (await waiting).reward == 1.0
    assert not (await server.start()).changed


async def test_llm_servers(server):
    with ScriptedEngine(lambda request: "yes") as engine:
        assert (await server.add_llm_server(engine.url)).dialect == "vllm"
        result = await server.process(play(reward=1.0, ask="ready?"))
        assert result.trajectory.turns[-1].text == "yes"
        before = result.policy_versions
        assert (await server.clear_llm_server()).backends == []
        await server.add_llm_server(BackendSpec(url=engine.url, dialect="vllm"))
        assert (await server.process(play(reward=1.0, ask="ready?"))).policy_versions != before
    assert (await server.status()).pool.backends


@pytest.mark.parametrize(
    ("request_", "status", "words"),
    [
        (JobRequest(instance={}, domain="cooking"), 404, "play"),
        (JobRequest(instance={}), 400, "names no domain"),
        (JobRequest(instance={}, domain="play", settings={"bonus": "x"}), 400, "bonus"),
    ],
)
async def test_what_is_refused(server, request_, status, words):
    with pytest.raises(ServiceError) as caught:
        await server.process(request_)
    assert caught.value.status == status
    assert words in str(caught.value)


async def test_the_same_id_with_another_body(server):
    first = JobRequest(instance={"reward": 1.0}, domain="play", job_id="same")
    assert (await server.process(first)) == (await server.process(first))
    with pytest.raises(ServiceError) as caught:
        await server.process(JobRequest(instance={"reward": 0.0}, domain="play", job_id="same"))
    assert caught.value.status == 409


async def test_what_it_says_of_itself(server):
    assert (await server.health()).status == "ok"
    assert {report.state for report in await server.plugins()} == {"active"}
