"""Rollouts that go on while the weights change, an engine dies, another one joins: on the real vLLM.

What proves a version is the engine itself: every sampled token is scored again under the weights that its trajectory
names, and under the others.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from prorl.api import AgentHandler, HandlerRecord, Job, Message
from prorl.client import RolloutClient
from prorl.llm.plugin import prorl_llm_dialects
from prorl.plugins.registry import Registry
from prorl.server.serve import RunningServer
from prorl.server.settings import parse_settings
from prorl.testing import tinymodel
from prorl.testing.engines import VllmEngine
from prorl.wire import BackendSpec, JobRequest, RolloutResult

pytestmark = pytest.mark.timeout(900)
ROLLOUTS, TURNS = 32, 4
TEXT = "Look at <tool_call> and 世界, then say what you saw. " * 4


class Gates:
    """Where the rollouts stand, and how far they may go: turn ``t`` begins when gate ``t`` is open."""

    def __init__(self) -> None:
        self.tokens = 24
        self.reached: Counter[int] = Counter()
        self._open = [threading.Event() for _ in range(TURNS)]

    def open(self, *turns: int) -> None:
        for turn in turns:
            self._open[turn].set()

    async def pass_through(self, turn: int) -> None:
        self.reached[turn] += 1
        while not self._open[turn].is_set():  # noqa: ASYNC110 - set from another thread
            await asyncio.sleep(0.02)

    async def wait_for(self, turn: int, rollouts: int = ROLLOUTS) -> None:
        while self.reached[turn] < rollouts:  # noqa: ASYNC110 - counted from another thread
            await asyncio.sleep(0.02)


class Talk(AgentHandler):
    def __init__(self, gates: Gates) -> None:
        self.gates = gates

    async def init(self, job: Job) -> Any:
        return None, {}, {}

    async def run(self, job: Job) -> dict[str, Any]:
        chat = job.services.chat()
        await chat.open([Message(role="user", content=f"Task {job.instance['n']}: {TEXT}")])
        for turn in range(TURNS):
            if turn:
                await chat.observe([Message(role="tool", name="look", content=f"{turn} {TEXT}")])
            await self.gates.pass_through(turn)
            await chat.reply(max_tokens=self.gates.tokens)
        return {}

    async def eval(self, job: Job) -> dict[str, Any]:
        return {"reward": 1.0}


class Run:
    """A server with its rollouts under way."""

    def __init__(self, server: RolloutClient, gates: Gates) -> None:
        self.server, self.gates = server, gates
        self._tasks: list[asyncio.Task[RolloutResult]] = []

    def submit(self, numbers: range) -> None:
        for n in numbers:
            # No seed: vLLM 0.32 on the CPU dies of one whose prompt it reads in more than one step.
            request = JobRequest(domain="talk", instance={"n": n}, backend_wait_s=120)
            self._tasks.append(asyncio.create_task(self.server.process(request)))

    async def results(self) -> list[RolloutResult]:
        results = await asyncio.gather(*self._tasks)
        assert [result.error for result in results] == [None] * len(self._tasks)
        assert len({result.job_id for result in results}) == len(self._tasks)
        for result in results:
            assert sum(turn.role == "assistant" for turn in result.trajectory.turns) == TURNS
        return results


@pytest.fixture
async def run() -> AsyncIterator[Run]:
    gates = Gates()
    talk = HandlerRecord(name="talk", factory=lambda: Talk(gates), summary="talks")
    registry = Registry(handlers={"talk": talk}, dialects={record.name: record for record in prorl_llm_dialects()})
    settings = parse_settings({"server": {"port": 0}})
    with RunningServer(settings, registry) as served:
        async with RolloutClient(served.url) as client:
            yield Run(client, gates)
        gates.open(*range(TURNS))


class Weights:
    """The two policies of this file, and how a trainer puts one into the engine."""

    def __init__(self, vllm: VllmEngine, client: httpx.AsyncClient, folders: dict[str, Path]) -> None:
        self._vllm, self._client, self._folders = vllm, client, folders

    async def _post(self, path: str, **body: Any) -> None:
        (await self._client.post(f"{self._vllm.url}{path}", **body)).raise_for_status()

    async def load(self, version: str, *, running: bool = False) -> None:
        await self._post("/pause", params={"mode": "keep"})
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(self._folders[version])}}
        await self._post("/collective_rpc", json=body)
        if not running:  # what runs on keeps what the old weights computed for it
            await self._post("/reset_prefix_cache")
        await self._post("/update_weight_version", json={"new_version": version})
        await self._post("/resume")

    async def gaps(self, results: list[RolloutResult]) -> dict[str, list[float]]:
        """By version: how far each sampled token's logprob is from what the engine gives it now."""
        gaps: dict[str, list[float]] = {}
        for result in results:
            (segment,) = result.trajectory.segments
            body = {"model": "tiny", "prompt": segment.tokens, "max_tokens": 1, "prompt_logprobs": 0, "temperature": 1}
            answer = await self._client.post(f"{self._vllm.url}/v1/completions", json=body)
            scored = answer.json()["choices"][0]["prompt_logprobs"]
            versions = [span.version for span in segment.versions for _ in range(span.count)]
            for token, logprob, version, place in zip(segment.tokens, segment.logprobs, versions, scored, strict=True):
                if logprob is not None:
                    gaps.setdefault(version, []).append(abs(logprob - place[str(token)]["logprob"]))
        return gaps


@pytest.fixture
def weights(vllm: VllmEngine, client: httpx.AsyncClient, tmp_path: Path) -> Weights:
    folders = {}
    for seed, version in enumerate(("step-1", "step-2")):
        folders[version] = tmp_path / version
        folders[version].mkdir()
        command = [vllm.python, tinymodel.__file__, str(folders[version]), str(seed)]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
    return Weights(vllm, client, folders)


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmEngine]:
    if (reason := VllmEngine.available()) is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("second")
    engine = VllmEngine(folder, max_context=4096)
    command = [engine.python, tinymodel.__file__, str(folder)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    with engine:
        yield engine


async def test_new_weights_under_running_rollouts(vllm, weights, run):
    """Clear, load, add, as a trainer does between two steps, with 32 rollouts in the middle of theirs."""
    await weights.load("step-1")
    await run.server.add_llm_server(BackendSpec(url=vllm.url, policy_version="step-1"))
    run.submit(range(ROLLOUTS))
    run.gates.open(0, 1)
    await run.gates.wait_for(2)
    await run.server.clear_llm_server()
    run.gates.open(2, 3)  # the next calls wait for a server
    await weights.load("step-2")
    await run.server.add_llm_server(BackendSpec(url=vllm.url, policy_version="step-2"))
    results = await run.results()
    for result in results:
        versions = [turn.policy_version for turn in result.trajectory.turns if turn.role == "assistant"]
        assert versions == ["step-1", "step-1", "step-2", "step-2"]
    now = await weights.gaps(results)
    await weights.load("step-1")
    before = await weights.gaps(results)
    assert min(len(now["step-1"]), len(now["step-2"])) > 100
    assert max(now["step-2"]) < 1e-4
    assert max(before["step-1"]) < 1e-4
    for strange in (now["step-1"], before["step-2"]):  # the other weights would have said something else
        assert sum(strange) / len(strange) > 0.1


async def sampled_so_far(vllm: VllmEngine, client: httpx.AsyncClient) -> float:
    lines = (await client.get(f"{vllm.url}/metrics")).text.splitlines()
    counts = [line.rpartition(" ")[2] for line in lines if line.startswith("vllm:generation_tokens_total{")]
    return sum(map(float, counts))


async def test_new_weights_within_replies(vllm, weights, run, client):
    """Pause, load, resume, with replies half sampled: they go on, and say token by token under which weights."""
    await weights.load("step-1")
    await run.server.add_llm_server(BackendSpec(url=vllm.url, policy_version="step-1"))
    run.submit(range(ROLLOUTS))
    run.gates.open(0)
    await run.gates.wait_for(1)
    before, run.gates.tokens = await sampled_so_far(vllm, client), 200
    run.gates.open(1)
    while await sampled_so_far(vllm, client) < before + 4 * ROLLOUTS:  # noqa: ASYNC110 - another process counts
        await asyncio.sleep(0.02)
    await weights.load("step-2", running=True)
    run.gates.tokens = 24
    run.gates.open(2, 3)
    results = await run.results()
    mixed = 0
    for result in results:
        (segment,) = result.trajectory.segments
        versions = [span.version for span in segment.versions for _ in range(span.count)]
        sampled = [version for version, mask in zip(versions, segment.loss_mask, strict=True) if mask]
        change = sampled.index("step-2")
        assert set(sampled[:change]) == {"step-1"}
        assert set(sampled[change:]) == {"step-2"}, "weights only move on"
        assert result.policy_versions == ["step-1", "step-2"]
        starts = {turn.start for turn in result.trajectory.turns}
        mixed += [i for i, mask in enumerate(segment.loss_mask) if mask][change] not in starts
    if not mixed:
        pytest.skip("this machine is too busy: no reply was half sampled when the engine paused")
    assert [status.healthy for status in (await run.server.status()).pool.backends] == [True]


async def test_turns_of_a_rollout_reuse_its_prefix(vllm, run):
    await run.server.add_llm_server(BackendSpec(url=vllm.url))
    run.gates.open(*range(TURNS))
    run.submit(range(8))
    for result in await run.results():
        _, *later = [turn for turn in result.trajectory.turns if turn.role == "assistant"]
        for before, turn in itertools.pairwise(later):
            assert turn.cached_tokens is not None
            assert before.start / 2 < turn.cached_tokens < turn.start, (
                "what an earlier turn computed is not computed again"
            )


async def test_a_late_joiner_gets_its_share_of_what_is_new(vllm, second, run):
    await run.server.add_llm_server(BackendSpec(url=vllm.url))
    run.submit(range(16))
    await run.gates.wait_for(0, 16)
    await run.server.add_llm_server(BackendSpec(url=second.url))
    run.submit(range(16, 32))
    await run.gates.wait_for(0, 32)
    assigned = {backend.url: backend.assigned for backend in (await run.server.status()).pool.backends}
    assert assigned == {vllm.url: 24, second.url: 8}
    run.gates.open(*range(TURNS))
    for result in await run.results():
        assert len({turn.backend for turn in result.trajectory.turns if turn.role == "assistant"}) == 1


async def test_an_engine_that_dies_in_the_middle_of_replies(vllm, second, weights, run):
    """Last in this file: ``second`` does not come back. Its rollouts go on elsewhere, where they stood."""
    await weights.load("step-1")  # the weights that both were started with
    for url in (vllm.url, second.url):
        await run.server.add_llm_server(BackendSpec(url=url, policy_version="step-1"))
    run.submit(range(ROLLOUTS))
    run.gates.open(0)
    await run.gates.wait_for(1)
    run.gates.open(1)
    await run.gates.wait_for(1)
    os.killpg(second._running().pid, signal.SIGKILL)
    run.gates.open(2, 3)
    results = await run.results()
    moved = 0
    for result in results:
        first, *_, last = [turn.backend for turn in result.trajectory.turns if turn.role == "assistant"]
        assert last == vllm.url
        moved += first == second.url
    assert moved == ROLLOUTS / 2
    assert max((await weights.gaps(results))["step-1"]) < 1e-4, (
        "a reply that moved was sampled after exactly its prompt"
    )
