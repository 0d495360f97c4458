"""Servers as processes, killed as the kernel kills: nothing is lost, nothing comes twice."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from prorl.client import (
    BlockingClient,
    CollectorSettings,
    Fleet,
    FleetSettings,
    GroupCollector,
    Prompt,
    RolloutClient,
)
from prorl.testing.httpd import stop_listening
from prorl.wire import JobRequest

PLAY = Path(__file__).parent.parent / "data" / "plugins" / "play"


class Process:
    """``prorl serve``; started again it listens at the same place."""

    def __init__(self, folder: Path, name: str) -> None:
        self.url = ""
        self._name = name
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        port = self.url.rpartition(":")[2] or "0"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "prorl", "serve", "--port", port, "--name", self._name],
                env=os.environ | {"PYTHONPATH": str(PLAY)},
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None
        told = self._process.stdout.readline().decode()
        assert told, self._log.read_text()
        self.url = told.partition(" listens on ")[2].split()[0]

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


@pytest.fixture
def processes(tmp_path):
    made: list[Process] = []

    def start(count: int) -> list[Process]:
        made.extend(Process(tmp_path, f"node-{n}") for n in range(count))
        for process in made:
            process.start()
        return made

    yield start
    for process in made:
        process.kill()


async def until(condition) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 - what is waited for is in another process
            await asyncio.sleep(0.05)


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def runs(log: Path) -> Counter[str]:
    return Counter(log.read_text().split()) if log.exists() else Counter()


@pytest.mark.timeout(600)
async def test_a_killed_server_that_comes_back_loses_and_doubles_nothing(processes, tmp_path):
    """50 rollouts are out when it dies; a collector gets every one of them, once."""
    (server,) = await asyncio.to_thread(processes, 1)
    log, gate = tmp_path / "log", tmp_path / "gate"
    prompts = (
        Prompt(
            prompt_id=f"p{n}",
            request=JobRequest(instance={"n": n, "reward": 1.0, "gate": str(gate), "log": str(log)}, domain="play"),
        )
        for n in range(25)
    )
    settings = CollectorSettings(samples=2, wanted=25, in_flight=50)
    async with (
        RolloutClient(server.url, give_up_s=300) as client,
        GroupCollector(client, prompts, settings, informative=lambda _: True) as collector,
    ):
        collecting = asyncio.create_task(collector.collect(0))
        await until(lambda: len(runs(log)) == 50)
        await asyncio.to_thread(server.kill)
        gate.touch()
        await asyncio.to_thread(server.start)
        batch = await collecting
    results = [result for group in batch.groups for result in group.results]
    assert (batch.complete, batch.troubles, len(results)) == (True, {}, 50)
    assert len({result.job_id for result in results}) == 50
    assert {result.job_id: 2 for result in results} == runs(log), "each ran anew, once, under the id it had"


@pytest.mark.timeout(600)
async def test_one_of_three_servers_is_killed_and_comes_back(processes, tmp_path):
    servers = await asyncio.to_thread(processes, 3)
    log, gate = tmp_path / "log", tmp_path / "gate"
    job = {"reward": 1.0, "log": str(log), "gate": str(gate)}
    settings = FleetSettings(check_s=0.3, check_timeout_s=30.0, strikes=2)
    async with Fleet([server.url for server in servers], settings) as fleet:
        requests = [JobRequest(instance={**job, "n": n}, domain="play", job_id=f"j{n}") for n in range(30)]
        running = [asyncio.create_task(fleet.process(request)) for request in requests]
        await until(lambda: len(runs(log)) == 30)
        assert {member.in_flight for member in fleet.members()} == {10}
        await asyncio.to_thread(servers[0].kill)
        await until(lambda: sum(runs(log).values()) == 40)  # its ten are elsewhere
        assert {member.in_flight for member in fleet.members()} == {0, 15}
        gate.touch()
        results = await asyncio.gather(*running)
        assert [(result.job_id, result.status) for result in results] == [(f"j{n}", "completed") for n in range(30)]
        await asyncio.to_thread(servers[0].start)
        await until(lambda: all(member.alive for member in fleet.members()))
        more = [JobRequest(instance={"reward": 0.5, "n": n}, domain="play") for n in range(30)]
        results = await asyncio.gather(*(fleet.process(request) for request in more))
        assert len({result.server for result in results}) == 3


@pytest.mark.timeout(600)
async def test_thousands_at_once_are_bounded_before_the_network(processes):
    (server,) = await asyncio.to_thread(processes, 1)
    before = descriptors()
    most = 0

    async with RolloutClient(server.url, concurrency=64, give_up_s=300) as client:

        async def one(n: int) -> str:
            nonlocal most
            result = await client.process(JobRequest(instance={"reward": 1.0}, domain="play", job_id=f"j{n}"))
            if n % 100 == 0:
                most = max(most, descriptors())
            return result.status

        assert Counter(await asyncio.gather(*(one(n) for n in range(5000)))) == {"completed": 5000}
    assert most - before <= 64 + 16


@pytest.mark.timeout(300)
async def test_a_connection_that_breaks_under_a_job_that_is_cancelled_with_it(processes, tmp_path):
    """The server cancels the job; nobody gave it up, so it is run anew."""
    (server,) = await asyncio.to_thread(processes, 1)
    port = int(server.url.rpartition(":")[2])
    log, gate = tmp_path / "log", tmp_path / "gate"
    writers: list[asyncio.StreamWriter] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        writers.extend((writer, far_writer))

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            try:
                while data := await source.read(65536):
                    sink.write(data)
            except ConnectionError:
                pass
            finally:
                sink.close()

        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    relays = await asyncio.start_server(relay, "127.0.0.1", 0)
    near = f"http://127.0.0.1:{relays.sockets[0].getsockname()[1]}"
    row = {"reward": 1.0, "log": str(log), "gate": str(gate)}
    job = JobRequest(instance=row, domain="play", job_id="j", cancel_on_disconnect=True)
    async with RolloutClient(near, give_up_s=120) as client:
        running = asyncio.create_task(client.process(job))
        await until(lambda: runs(log)["j"] == 1)
        for writer in writers:
            writer.transport.abort()
        await until(lambda: runs(log)["j"] == 2)
        gate.touch()
        assert (await running).status == "completed"
    await stop_listening(relays)


@pytest.mark.timeout(300)
async def test_the_sync_face_beside_a_running_loop(processes):
    """In a thread it works; under a loop that runs it says what to do instead."""
    (server,) = await asyncio.to_thread(processes, 1)

    def use() -> float:
        with BlockingClient(server.url, give_up_s=60) as client:
            return client.process(JobRequest(instance={"reward": 0.5}, domain="play")).reward

    assert await asyncio.gather(asyncio.to_thread(use), asyncio.to_thread(use)) == [0.5, 0.5]
    with pytest.raises(RuntimeError, match="RolloutClient"):
        BlockingClient(server.url)
