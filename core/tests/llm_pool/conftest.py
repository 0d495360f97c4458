"""A pool with quick retries, and engines that are real HTTP servers in threads of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager

import pytest

from prorl.llm.plugin import prorl_llm_dialects
from prorl.llm.pool import BackendPool, PoolSettings
from prorl.testing.scripted import ScriptedEngine


class Clock:
    """Stands for a job's clock: counts how often it was held, and whether it is held now."""

    def __init__(self) -> None:
        self.held = 0
        self.times = 0

    @contextmanager
    def hold(self) -> Iterator[None]:
        self.held += 1
        self.times += 1
        try:
            yield
        finally:
            self.held -= 1


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def make_pool() -> AsyncIterator[Callable[..., BackendPool]]:
    """``make_pool(concurrency=3)``: a pool of its own, closed at the end."""
    async with AsyncExitStack() as stack:

        def make(**changes: object) -> BackendPool:
            settings = {"retry_first_s": 0.02, "retry_last_s": 0.2, "health_every_s": 60.0, **changes}
            pool = BackendPool({record.name: record for record in prorl_llm_dialects()}, PoolSettings(**settings))
            stack.push_async_callback(pool.close)
            return pool

        yield make


@pytest.fixture
def pool(make_pool: Callable[..., BackendPool]) -> BackendPool:
    return make_pool()


@pytest.fixture
def engine() -> Iterator[Callable[..., ScriptedEngine]]:
    """``engine()`` starts a scripted engine; all are stopped at the end."""
    with ExitStack() as stack:

        def start(
            policy: object = lambda _: "hello", *, kind: type[ScriptedEngine] = ScriptedEngine, **options: object
        ):
            return stack.enter_context(kind(policy, **options))

        yield start


@pytest.fixture
def eventually() -> Callable[..., object]:
    """Wait for a condition instead of for a time."""

    async def wait(condition: Callable[[], bool], within: float = 30.0) -> None:
        async with asyncio.timeout(within):
            while not condition():  # noqa: ASYNC110 - the condition is on another thread
                await asyncio.sleep(0.005)

    return wait
