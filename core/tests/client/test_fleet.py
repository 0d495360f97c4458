"""Several real servers as one: what dies is replaced, what returns is used, and no rollout is lost or doubled."""

from __future__ import annotations

import asyncio
from collections import Counter
from importlib import metadata
from itertools import count
from pathlib import Path

import msgspec
import pytest

from prorl.client import (
    BlockingClient,
    ClientError,
    CollectorSettings,
    Fleet,
    FleetSettings,
    GroupCollector,
    Prompt,
    RolloutClient,
    ServerUnreachable,
    ServiceError,
)
from prorl.plugins import discover
from prorl.server.serve import RunningServer
from prorl.server.settings import parse_settings
from prorl.testing.engines import free_port
from prorl.testing.scripted import ScriptedEngine
from prorl.wire import BackendSpec, JobRequest

PLAY = Path(__file__).parent.parent / "data" / "plugins" / "play"
QUICK = FleetSettings(check_s=0.1, check_timeout_s=20.0, strikes=2, give_up_s=60.0)


class House:
    """Rollout servers that can be started, stopped and started again at the same address."""

    def __init__(self) -> None:
        found = [metadata.distribution("prorl"), *metadata.distributions(path=[str(PLAY)])]
        self.registry = discover(distributions=found)
        self.running: dict[str, RunningServer] = {}
        self._names = map("node-{}".format, count())

    def start(self, url: str | None = None) -> str:
        port = int(url.rpartition(":")[2]) if url else 0
        server = RunningServer(
            parse_settings({"server": {"port": port, "name": next(self._names)}, "pipeline": {"run_workers": 8}}),
            self.registry,
        )
        server.__enter__()
        self.running[server.url] = server
        return server.url

    def stop(self, url: str) -> None:
        self.running.pop(url).__exit__(None, None, None)


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(PLAY))
    house = House()
    yield house
    for url in list(house.running):
        house.stop(url)


def play(**row: object) -> JobRequest:
    return JobRequest(instance=row, domain="play")


async def until(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for is in another thread
            await asyncio.sleep(0.02)


def alive(fleet: Fleet) -> set[str]:
    return {member.url for member in fleet.members() if member.alive}


async def test_jobs_go_where_there_is_room(house):
    urls = [house.start() for _ in range(3)]
    async with Fleet(urls, QUICK) as fleet:
        results = await asyncio.gather(*(fleet.process(play(reward=n / 100)) for n in range(24)))
        assert [result.reward for result in results] == [n / 100 for n in range(24)]
        assert len(Counter(result.server for result in results)) == 3
        assert {member.in_flight for member in fleet.members()} == {0}


async def test_a_server_that_stops_loses_no_rollout_and_is_used_again(house, tmp_path):
    first, second = house.start(), house.start()
    gate = tmp_path / "gate"
    async with Fleet([first, second], QUICK) as fleet:
        running = [asyncio.create_task(fleet.process(play(reward=1.0, gate=str(gate)))) for _ in range(8)]
        await until(lambda: {member.in_flight for member in fleet.members()} == {4})
        await asyncio.to_thread(house.stop, first)
        await until(lambda: alive(fleet) == {second})
        gate.touch()
        results = await asyncio.gather(*running)
        assert [result.status for result in results] == ["completed"] * 8
        assert len({result.job_id for result in results}) == 8
        house.start(first)
        await until(lambda: alive(fleet) == {first, second})
        more = await asyncio.gather(*(fleet.process(play(reward=0.5)) for _ in range(8)))
        assert len({result.server for result in more}) == 2


async def test_one_server_that_is_restarted_loses_no_rollout(house, tmp_path):
    """Without a fleet, too: stopping it gracefully ends its jobs, and they are sent again."""
    url, gate, log = house.start(), tmp_path / "gate", tmp_path / "log"
    async with RolloutClient(url, give_up_s=60) as client:
        row = {"reward": 1.0, "gate": str(gate), "log": str(log)}
        running = [asyncio.create_task(client.process(play(n=n, **row))) for n in range(6)]
        await until(lambda: log.exists() and len(log.read_text().split()) == 6)
        await asyncio.to_thread(house.stop, url)
        gate.touch()
        house.start(url)
        results = await asyncio.gather(*running)
    assert [result.reward for result in results] == [1.0] * 6
    assert Counter(log.read_text().split()) == {result.job_id: 2 for result in results}, "each anew, once"


async def test_a_job_that_a_stop_ended_is_run_when_it_is_sent_again(house, tmp_path):
    url, gate = house.start(), tmp_path / "gate"
    job = JobRequest(instance={"reward": 1.0, "gate": str(gate)}, domain="play", job_id="again")
    async with RolloutClient(url, give_up_s=60) as client:
        await client.submit(job)
        await client.stop()
        assert (await client.job("again")).state == "cancelled"
        gate.touch()
        await client.start()
        assert (await client.process(job)).reward == 1.0


async def test_a_fleet_of_one_may_be_given_as_its_url(house):
    url = house.start()
    async with Fleet(f"{url}/", QUICK) as fleet:
        assert [member.url for member in fleet.members()] == [url]
        assert (await fleet.process(play(reward=1.0))).reward == 1.0


async def test_a_rollout_waits_for_a_server_to_come_up(house):
    url = f"http://127.0.0.1:{free_port()}"
    async with Fleet([url], QUICK) as fleet:
        waiting = asyncio.create_task(fleet.process(play(reward=1.0)))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        house.start(url)
        assert (await waiting).reward == 1.0


async def test_no_server_at_all_is_an_error_in_time():
    async with Fleet([f"http://127.0.0.1:{free_port()}"], FleetSettings(check_s=0.05, give_up_s=0.3)) as fleet:
        with pytest.raises(ServerUnreachable, match="tried for"):
            await fleet.process(play(reward=1.0))


async def test_a_bad_request_is_the_callers(house):
    async with Fleet([house.start()], QUICK) as fleet:
        with pytest.raises(ServiceError):
            await fleet.process(JobRequest(instance={}, domain="nobody"))
        assert len(alive(fleet)) == 1


async def test_a_stopped_server_gets_no_jobs(house):
    first, second = house.start(), house.start()
    async with Fleet([first, second], QUICK) as fleet:
        await fleet._members[first].client.stop()
        results = await asyncio.gather(*(fleet.process(play(reward=1.0)) for _ in range(6)))
        assert len({result.server for result in results}) == 1
        await fleet._members[first].client.start()
        await until(lambda: alive(fleet) == {first, second})


async def test_cancel_finds_the_server_that_has_it(house, tmp_path):
    async with Fleet([house.start(), house.start()], QUICK) as fleet:
        jobs = [JobRequest(instance={"gate": str(tmp_path / "never")}, domain="play", job_id=f"j{n}") for n in range(4)]
        running = [asyncio.create_task(fleet.process(job)) for job in jobs]
        await until(lambda: sum(member.in_flight for member in fleet.members()) == 4)
        cancelled: set[str] = set()
        while len(cancelled) < 4:  # some are still on their way
            reply = await fleet.cancel(job_ids=("j0", "j1", "j2", "j3", "stranger"))
            cancelled |= set(reply.cancelled)
        assert reply.unknown == ["stranger"]  # what has ended is known
        assert {result.status for result in await asyncio.gather(*running)} == {"cancelled"}


async def test_llm_servers_are_dealt_and_dealt_again(house):
    first, second = house.start(), house.start()
    with ScriptedEngine(lambda _: "a") as a, ScriptedEngine(lambda _: "b") as b, ScriptedEngine(lambda _: "c") as c:
        async with Fleet([first, second], QUICK) as fleet:
            for engine in (a, b, c):
                await fleet.add_llm_server(engine.url)
            hands = {member.url: set(member.llm_servers) for member in fleet.members()}
            assert sorted(len(hand) for hand in hands.values()) == [1, 2]
            assert set().union(*hands.values()) == {a.url, b.url, c.url}
            for url, hand in hands.items():
                status = await fleet._members[url].client.status()
                assert {backend.url for backend in status.pool.backends} == hand

            await asyncio.to_thread(house.stop, first)
            await until(lambda: alive(fleet) == {second})
            await fleet.clear_llm_server()
            await fleet.add_llm_server(a.url)
            await fleet.add_llm_server(b.url)
            house.start(first)  # it knows of nothing
            await until(lambda: alive(fleet) == {first, second})
            for url in (first, second):
                (backend,) = (await fleet._members[url].client.status()).pool.backends
                assert backend.policy_version == "1", "one version, whichever server counts"

            await fleet.remove_server(first)
            assert [set(member.llm_servers) for member in fleet.members()] == [{a.url, b.url}]


async def test_fleets_that_share_servers_leave_each_others_llm_servers_alone(house):
    url = house.start()
    shared = msgspec.structs.replace(QUICK, shared=True)
    with ScriptedEngine(lambda _: "a") as a, ScriptedEngine(lambda _: "b") as b:
        async with Fleet([url], shared) as first, Fleet([url], shared) as second, RolloutClient(url) as server:

            async def registered() -> set[str]:
                return {backend.url for backend in (await server.status()).pool.backends}

            await first.add_llm_server(a.url)
            await second.add_llm_server(b.url)
            for fleet in (first, second):
                await fleet._members[url].check()
            assert await registered() == {a.url, b.url}
            await asyncio.to_thread(house.stop, url)
            await until(lambda: not alive(first) and not alive(second))
            house.start(url)
            await until(lambda: alive(first) and alive(second))
            assert await registered() == {a.url, b.url}
            await first.clear_llm_server()
            assert await registered() == {b.url}


async def test_a_fleet_that_was_told_of_none_leaves_llm_servers_alone(house):
    url = house.start()
    with ScriptedEngine(lambda _: "a") as engine:
        async with RolloutClient(url) as client, Fleet([url], QUICK) as fleet:
            await client.add_llm_server(engine.url)
            await fleet.process(play(reward=1.0))
            await asyncio.sleep(0.5)  # some checks later
            assert len((await client.status()).pool.backends) == 1


async def test_an_llm_server_that_is_refused_is_registered_nowhere(house):
    async with Fleet([house.start()], QUICK) as fleet:
        with pytest.raises(ServiceError, match="unknown dialect"):
            await fleet.add_llm_server(BackendSpec(url="http://127.0.0.1:9", dialect="klingon"))
        assert fleet.members()[0].llm_servers == ()


async def test_groups_over_a_fleet_that_loses_a_server(house):
    urls = [house.start(), house.start()]
    prompts = (Prompt(prompt_id=f"p{n}", request=play(rewards=[0.0, 1.0], n=n)) for n in range(1000))

    def differ(group) -> bool:
        return group.prompt.prompt_id.endswith(("1", "3", "5", "7", "9"))  # play's rewards are what they are told

    async with Fleet(urls, QUICK) as fleet:
        settings = CollectorSettings(samples=4, wanted=6, in_flight=16)
        async with GroupCollector(fleet, prompts, settings, informative=differ) as collector:
            first = await collector.collect(0)
            await asyncio.to_thread(house.stop, urls[0])
            second = await collector.collect(1)
    assert first.complete
    assert second.complete
    job_ids = [result.job_id for batch in (first, second) for group in batch.groups for result in group.results]
    assert len(job_ids) == len(set(job_ids)) == 48


def test_the_sync_face(house, tmp_path):
    with BlockingClient(house.start(), give_up_s=60) as client:
        first, second = client.process_all([play(reward=0.25), play(reward=0.75)])
        assert (first.reward, second.reward) == (0.25, 0.75)
        view = client.submit(play(reward=1.0))
        assert client.wait(view.job_id, timeout_s=60).reward == 1.0
        events = list(client.events(view.job_id))
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert next(client.events(view.job_id, after=1)).seq == 2
        waiting = client.submit(play(gate=str(tmp_path / "never")))
        assert client.cancel(waiting.job_id).cancelled == [waiting.job_id]
        assert client.job(waiting.job_id).state == "cancelled"
        assert client.stop().changed
        assert client.start().accepting


async def test_an_llm_server_that_is_down_keeps_no_rollout_server_away(house):
    url = house.start()
    with ScriptedEngine(lambda _: "yes") as up, ScriptedEngine(lambda _: "yes") as down:
        gone = down.url
        async with Fleet([url], QUICK) as fleet:
            await fleet.add_llm_server(up.url)
            await fleet.add_llm_server(BackendSpec(url=gone))
            await asyncio.to_thread(house.stop, url)
            await until(lambda: not alive(fleet))
            down.__exit__(None, None, None)
            house.start(url)
            await until(lambda: alive(fleet) == {url})
            assert (await fleet.process(play(reward=1.0, ask="ready?"))).status == "completed"
            (backend,) = (await fleet._members[url].client.status()).pool.backends
            assert backend.url == up.url


async def test_a_rollout_server_that_can_reach_none_of_its_llm_servers_gets_no_jobs(house):
    url = house.start()
    with ScriptedEngine(lambda _: "yes") as engine:
        fleet = Fleet([url], QUICK)
        async with fleet:
            await fleet.add_llm_server(engine.url)
            await asyncio.to_thread(house.stop, url)
            await until(lambda: not alive(fleet))
            engine.__exit__(None, None, None)
            house.start(url)
            await until(lambda: "none of its LLM servers" in fleet.members()[0].why)
            with engine:  # on the same port
                await until(lambda: alive(fleet) == {url})


async def test_an_llm_server_that_answers_late_is_waited_for(house):
    late = ScriptedEngine(lambda _: "yes")
    with late:
        pass
    async with Fleet([house.start()], QUICK) as fleet:
        with pytest.raises(ServiceError, match="nothing answers"):
            await fleet.add_llm_server(late.url)
        adding = asyncio.create_task(fleet.add_llm_server(late.url, wait_s=60))
        await asyncio.sleep(0.5)
        assert not adding.done()
        with late:
            await adding
            assert fleet.members()[0].llm_servers == (late.url,)


async def test_who_waits_when_the_fleet_is_closed_is_told(house, tmp_path):
    async with Fleet([house.start()], QUICK) as fleet, Fleet([f"http://127.0.0.1:{free_port()}"], QUICK) as empty:
        running = asyncio.create_task(fleet.process(play(gate=str(tmp_path / "never"))))
        waiting = asyncio.create_task(empty.process(play(reward=1.0)))
        await until(lambda: fleet.members()[0].in_flight == 1)
    for call in (running, waiting):
        with pytest.raises(ClientError, match="closed"):
            await asyncio.wait_for(call, 10)


async def test_a_cancel_that_one_server_does_not_hear_is_heard_by_the_others(house, tmp_path):
    first, second = house.start(), house.start()
    slow = msgspec.structs.replace(QUICK, strikes=10_000)  # nobody notices
    async with Fleet([first, second], slow) as fleet:
        gate = str(tmp_path / "never")
        job = JobRequest(instance={"gate": gate}, domain="play", job_id="j")
        running = asyncio.create_task(fleet.process(job))
        await until(lambda: sum(member.in_flight for member in fleet.members()) == 1)
        (idle,) = (member.url for member in fleet.members() if member.in_flight == 0)
        await asyncio.to_thread(house.stop, idle)
        while not (await fleet.cancel(job_ids=("j", "stranger"))).cancelled:
            pass  # it was on its way still
        assert (await running).status == "cancelled"
