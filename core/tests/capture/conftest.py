"""A real server whose jobs do nothing but keep their door open for the test."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from prorl.api import AgentHandler, Capture, HandlerRecord, Job
from prorl.client import BlockingClient
from prorl.testing.lab import Lab
from prorl.wire import JobRequest, RolloutResult


class Ajar(AgentHandler):
    """Opens its door and waits until it is told to end."""

    def __init__(self) -> None:
        self.doors: dict[str, Capture] = {}
        self.ends: dict[str, asyncio.Event] = {}
        self.loop: asyncio.AbstractEventLoop | None = None

    async def init(self, job: Job) -> Any:
        return None, {}, {}

    async def run(self, job: Job) -> dict[str, Any]:
        self.loop = asyncio.get_running_loop()
        end = self.ends[job.id] = asyncio.Event()
        door = self.doors[job.id] = job.services.capture(max_calls=job.instance.get("max_calls"))
        await end.wait()
        return {"metrics": door.metrics(), "fault": str(door.fault or ""), "refusals": door.refusals()}

    async def eval(self, job: Job) -> dict[str, Any]:
        return {"reward": 1.0, "metrics": dict(job.run_output)}


class OpenDoor:
    """A job that is running, seen from the agent's side. ``result`` is there once the block has ended."""

    def __init__(self, door: Capture) -> None:
        self.door = door
        self.url, self.key = door.url, door.key
        self.result: RolloutResult

    @property
    def metrics(self) -> dict[str, Any]:
        return self.result.metrics["metrics"]


class House:
    def __init__(self, lab: Lab, handler: Ajar) -> None:
        self.lab = lab
        self.engine = lab.engine
        self._handler = handler

    @contextmanager
    def job(self, **request: Any) -> Iterator[OpenDoor]:
        instance = request.pop("instance", {})
        ended: list[RolloutResult] = []
        job_id = request.setdefault("job_id", f"job-{time.monotonic_ns()}")

        def rollout() -> None:
            body = {"instance": instance, "domain": "ajar", **request}
            with BlockingClient(self.lab.url) as client:  # of its own: jobs run side by side
                ended.append(client.process(msgspec.convert(body, JobRequest)))

        thread = threading.Thread(target=rollout)
        thread.start()
        until(lambda: job_id in self._handler.doors or not thread.is_alive())
        opened = OpenDoor(self._handler.doors[job_id])
        try:
            yield opened
        finally:
            assert self._handler.loop is not None
            self._handler.loop.call_soon_threadsafe(self._handler.ends[job_id].set)
            thread.join()
        opened.result = ended[0]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.005)


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool]], None]:
    return until


@pytest.fixture
def house() -> Iterator[Callable[..., Any]]:
    """``with house(policy) as house, house.job() as job``."""

    @contextmanager
    def open_house(
        policy: Any, *, max_context: int = 8192, tokenizer: Path | None = None, **more: Any
    ) -> Iterator[House]:
        handler = Ajar()
        record = HandlerRecord(name="ajar", factory=lambda: handler, summary="keeps its door open")
        lab = Lab(policy, handlers=[record], **more)
        lab.engine.max_context = max_context
        lab.engine._source = tokenizer
        with lab:
            yield House(lab, handler)

    return open_house


@pytest.fixture
def exact_segments() -> Callable[[RolloutResult], None]:
    """What must hold of every trajectory, whatever the agent did: mask 1 is where a reply was sampled, once; a branch
    begins with its parent's tokens, as context."""

    def check(result: RolloutResult) -> None:
        segments = result.trajectory.segments
        replies = [turn for turn in result.trajectory.turns if turn.role == "assistant"]
        assert replies
        for number, segment in enumerate(segments):
            own = [turn for turn in replies if turn.segment == number]
            sampled = [at for turn in own for at in range(turn.start, turn.end)]
            assert [at for at, mask in enumerate(segment.loss_mask) if mask] == sorted(sampled)
            assert [at for at, logprob in enumerate(segment.logprobs) if logprob is not None] == sorted(sampled)
            if segment.parent is not None:
                assert segment.tokens[: segment.shared] == segments[segment.parent].tokens[: segment.shared]
                assert not any(segment.loss_mask[: segment.shared])

    return check


@pytest.fixture
def exact(exact_segments: Callable[[RolloutResult], None]) -> Callable[..., None]:
    """Beyond that, every list of ids that the engine was sent is what stands before one reply, and every reply is what
    the engine played after it."""

    def check(house: Any, result: RolloutResult) -> None:
        exact_segments(result)
        replies = [turn for turn in result.trajectory.turns if turn.role == "assistant"]
        sent = sorted(request.prompt_ids for request in house.engine.requests)
        assert sent == sorted(result.trajectory.input_ids(turn) for turn in replies)

    return check


@pytest.fixture
def sdk() -> Iterator[Callable[..., Any]]:
    """``sdk(openai.OpenAI, ...)``: a client that is closed in the end."""
    made: list[Any] = []

    def make(kind: Any, **options: Any) -> Any:
        made.append(kind(**options))
        return made[-1]

    yield make
    for client in made:
        client.close()
