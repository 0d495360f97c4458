"""Tasks that wait for a backend while their clock stands still: how it ends, and that a cancelled call ends too."""

from __future__ import annotations

import asyncio

import pytest

from prorl.api import ConfigError, ModelFault
from prorl.wire import BackendSpec, SamplingParams

PROMPT = [72, 73, 74]
SAMPLING = SamplingParams(max_tokens=64)


async def test_a_task_waits_for_a_backend_while_its_clock_stands_still(pool, engine, clock, eventually):
    lease = pool.lease("job", wait_s=60, hold=clock.hold)
    call = asyncio.create_task(lease.generate(PROMPT, SAMPLING))
    await eventually(lambda: pool.status().waiting == 1)
    assert clock.held == 1
    await pool.add(BackendSpec(url=engine().url))
    assert (await call).generation.finish == "stop"
    assert (clock.held, clock.times, pool.status().waiting) == (0, 1, 0)


async def test_waiting_has_an_end_that_says_what_to_do(pool, clock):
    for wait in (0, 0.05):
        with pytest.raises(ModelFault, match="/add_llm_server") as caught:
            await pool.lease("job", wait_s=wait, hold=clock.hold).ready()
        assert caught.value.code == "no_backend"
    assert (clock.held, pool.status().waiting) == (0, 0)


async def test_pause_holds_back_new_calls_only(pool, engine, clock, eventually):
    one = engine()
    await pool.add(BackendSpec(url=one.url))
    one.hold()
    running = asyncio.create_task(pool.lease("running", wait_s=0, hold=clock.hold).generate(PROMPT, SAMPLING))
    await eventually(lambda: one.in_flight == 1)
    pool.pause()
    later = asyncio.create_task(pool.lease("later", wait_s=0, hold=clock.hold).generate(PROMPT, SAMPLING))
    await eventually(lambda: pool.status().waiting == 1)
    one.let_go()
    await running
    assert not later.done()
    assert (pool.status().paused, clock.held, len(one.requests)) == (True, 1, 1)
    pool.resume()
    await later


async def test_a_cancelled_call_stops_at_the_engine(pool, engine, clock, eventually):
    one = engine()
    await pool.add(BackendSpec(url=one.url))
    one.hold()
    call = asyncio.create_task(pool.lease("job", wait_s=0, hold=clock.hold).generate(PROMPT, SAMPLING))
    await eventually(lambda: one.in_flight == 1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await eventually(lambda: one.in_flight == 0 and len(one.abort_requests) == 1)
    assert one.aborted == 1
    assert one.abort_requests == [f"generate-tokens-{one.requests[0].request_id}"]
    assert pool.status().backends[0].in_flight == 0


async def test_close_ends_calls_and_waiters(pool, engine, clock, eventually):
    one = engine()
    await pool.add(BackendSpec(url=one.url))
    one.hold()
    call = asyncio.create_task(pool.lease("job", wait_s=30, hold=clock.hold).generate(PROMPT, SAMPLING))
    await eventually(lambda: one.in_flight == 1)
    await pool.close()
    with pytest.raises(ModelFault, match="closed") as caught:
        await call
    assert caught.value.code == "no_backend"
    with pytest.raises(ConfigError, match="closed"):
        await pool.add(BackendSpec(url=one.url))
