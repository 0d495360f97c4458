"""Real engines, one start per test run, and what every dialect is asked in the same way."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from prorl.llm.plugin import prorl_llm_dialects
from prorl.llm.pool import BackendPool, PoolSettings
from prorl.testing import tinymodel
from prorl.testing.engines import LlamaEngine, VllmEngine


@pytest.fixture(scope="session")
def llama() -> Iterator[LlamaEngine]:
    if (reason := LlamaEngine.available()) is not None:
        pytest.skip(reason)
    with LlamaEngine(n_ctx=512, parallel=4) as engine:
        yield engine


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmEngine]:
    if (reason := VllmEngine.available()) is not None:
        pytest.skip(reason)
    engine = tiny_vllm(tmp_path_factory.mktemp("tiny"))
    with engine:
        yield engine


def tiny_vllm(folder: Path) -> VllmEngine:
    engine = VllmEngine(folder, max_context=4096, options=("--max-logprobs", "-1"))
    write_tiny(engine, folder)
    return engine


def write_tiny(engine: VllmEngine, folder: Path, seed: int = 0) -> None:
    """Other seeds are other weights of the same model."""
    command = [engine.python, tinymodel.__file__, str(folder), str(seed)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=None) as client:
        yield client


@pytest.fixture
async def make_pool() -> AsyncIterator[Callable[..., BackendPool]]:
    async with AsyncExitStack() as stack:

        def make(**changes: object) -> BackendPool:
            pool = BackendPool({record.name: record for record in prorl_llm_dialects()}, PoolSettings(**changes))
            stack.push_async_callback(pool.close)
            return pool

        yield make


@pytest.fixture
def eventually() -> Callable[..., object]:
    async def wait(condition: Callable[[], Awaitable[object]], within: float = 60.0) -> None:
        async with asyncio.timeout(within):
            while not await condition():  # noqa: ASYNC110 - the condition is in another process
                await asyncio.sleep(0.02)

    return wait
