"""A lane that a call left in disorder must never be given to another call."""

from __future__ import annotations

import asyncio
import random

import httpx
import pytest

from prorl.llm.pool.settings import PoolSettings
from prorl.llm.pool.transport import open_client
from prorl.testing.scripted import ScriptedEngine


@pytest.fixture
def engine():
    with ScriptedEngine(lambda _: "hello") as engine:
        yield engine


async def test_cancelled_calls_never_hang_later_ones(engine):
    pick = random.Random(2)
    cancelled = 0

    async def call(client: httpx.AsyncClient) -> None:
        response = await client.post(f"{engine.url}/tokenize", json={"prompt": "hello"})
        assert response.status_code == 200

    async def caller(client: httpx.AsyncClient) -> None:
        nonlocal cancelled
        for _ in range(60):
            task = asyncio.create_task(call(client))
            if pick.random() < 0.5:
                await asyncio.sleep(pick.random() * 0.006)
                task.cancel()
            done, _ = await asyncio.wait({task}, timeout=30)
            assert done, "a call on a lane that a cancelled one left behind never ends"
            cancelled += task.cancelled()
            if not task.cancelled():
                task.result()

    async with open_client(PoolSettings(), tls=False) as client:
        await asyncio.gather(*(caller(client) for _ in range(8)))
    assert cancelled > 20


async def test_a_lane_is_used_again_after_a_whole_answer_only(engine):
    async with open_client(PoolSettings(), tls=False) as client:
        lanes = client._transport
        for _ in range(3):
            await client.get(f"{engine.url}/health")
        (first,) = lanes._all
        async with client.stream("GET", f"{engine.url}/metrics"):
            pass  # not read
        await client.get(f"{engine.url}/health")
        (second,) = lanes._all
        assert second is not first
        assert lanes._free == [second]


async def test_a_refused_connection_leaves_no_lane(engine):
    async with open_client(PoolSettings(), tls=False) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("http://127.0.0.1:1")
        assert not client._transport._all


async def test_closing_waits_for_what_was_dropped(engine):
    client = open_client(PoolSettings(), tls=False)
    engine.hold()
    body = {"model": engine.model, "request_id": "r", "prompt": [1], "max_tokens": 5, "stop_token_ids": []}
    call = asyncio.create_task(client.post(f"{engine.url}/v1/completions", json=body))
    while engine.in_flight != 1:  # noqa: ASYNC110 - the condition is on another thread
        await asyncio.sleep(0.005)
    call.cancel()
    await asyncio.wait({call})
    await client.aclose()
    assert not client._transport._closing
    async with asyncio.timeout(30):
        while engine.in_flight:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    engine.let_go()


@pytest.mark.parametrize("turns", range(16))
async def test_closing_under_a_call_leaves_no_connection(engine, turns):
    """However far the call has come: before it connects, while it does, with the request on its way."""
    client = open_client(PoolSettings(), tls=False)
    call = asyncio.create_task(client.get(f"{engine.url}/health"))
    for _ in range(turns):
        await asyncio.sleep(0)
    await client.aclose()
    await asyncio.wait({call})
    assert call.exception() is None or isinstance(call.exception(), httpx.TransportError | RuntimeError)
    async with asyncio.timeout(30):
        while engine._connections:  # noqa: ASYNC110 - they are on another thread
            await asyncio.sleep(0.005)
