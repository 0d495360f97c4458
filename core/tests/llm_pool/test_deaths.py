"""Engines that die, freeze, restart or come back as others: their calls are made elsewhere, and none is lost."""

from __future__ import annotations

import asyncio

import pytest

from prorl.api import ModelFault
from prorl.testing.faulty import FaultyEngine
from prorl.wire import BackendSpec, SamplingParams

PROMPT = [72, 73, 74]
SAMPLING = SamplingParams(max_tokens=64)


@pytest.mark.parametrize("way", ["gone", "no_answer", "error_500", "half_closed"])
async def test_a_backend_that_dies_in_a_call_is_set_aside_and_the_call_made_elsewhere(
    pool, engine, clock, eventually, way
):
    good, bad = engine(), engine(kind=FaultyEngine)
    await pool.add(BackendSpec(url=bad.url))
    lease = pool.lease("job", wait_s=30, hold=clock.hold)
    assert (await lease.generate(PROMPT, SAMPLING)).backend == bad.url
    await pool.add(BackendSpec(url=good.url))
    if way == "gone":
        bad.hold()
        call = asyncio.create_task(lease.generate(PROMPT, SAMPLING))
        await eventually(lambda: bad.in_flight == 1)
        await asyncio.to_thread(bad.stop)
        reply = await call
    else:
        bad.fault = way
        reply = await lease.generate(PROMPT, SAMPLING)
    assert (reply.backend, reply.attempts) == (good.url, 2)
    assert (await lease.generate(PROMPT, SAMPLING)).backend == good.url  # and there it stays
    if way == "gone":
        shown = next(backend for backend in pool.status().backends if backend.url == bad.url)
        assert not shown.healthy
        assert shown.failures == 1
        assert "cannot be reached" in shown.reason
        bad._go.set()
        await asyncio.to_thread(bad.start)
    bad.fault = None
    await eventually(lambda: all(backend.healthy for backend in pool.status().backends))


async def test_sixty_four_tasks_lose_nothing_while_engines_die_and_return(pool, engine, clock):
    engines = [engine(), engine(), engine()]
    for one in engines:
        await pool.add(BackendSpec(url=one.url))

    async def task(number: int) -> int:
        lease, ids = pool.lease(f"job-{number}", wait_s=60, hold=clock.hold), list(PROMPT)
        for _ in range(12):
            reply = await lease.generate(ids, SAMPLING)
            assert reply.generation.prompt_echo == ids
            ids += reply.generation.token_ids
        return len(ids)

    tasks = [asyncio.create_task(task(number)) for number in range(64)]
    for one in (engines[0], engines[1]):
        await asyncio.to_thread(one.stop)
        await asyncio.sleep(0.05)
        await asyncio.to_thread(one.start)
    lengths = await asyncio.gather(*tasks)
    assert set(lengths) == {len(PROMPT) + 12 * len("hello" + "E")}
    assert sum(backend.calls - backend.failures for backend in pool.status().backends) == 64 * 12


async def test_a_frozen_engine_is_found_out_and_its_calls_move(make_pool, engine, clock, eventually):
    """It holds the connection and says nothing: only the health checks can tell."""

    class Frozen(FaultyEngine):
        async def handle(self, request):
            if self.fault == "hang" and request.path == "/health":
                await asyncio.Event().wait()
            return await super().handle(request)

    pool = make_pool(health_timeout_s=0.2, health_every_s=0.1)
    frozen = engine(kind=Frozen)
    await pool.add(BackendSpec(url=frozen.url))
    lease = pool.lease("job", wait_s=60, hold=clock.hold)
    await lease.ready()
    frozen.fault = "hang"
    call = asyncio.create_task(lease.generate(PROMPT, SAMPLING))
    await eventually(lambda: pool._backends[frozen.url].in_flight == 1)
    good = engine()
    await pool.add(BackendSpec(url=good.url))
    assert (await call).backend == good.url
    frozen.fault = None
    await eventually(lambda: all(backend.healthy for backend in pool.status().backends))


async def test_an_engine_too_busy_to_describe_itself_stays_in_use(make_pool, engine, clock, eventually, monkeypatch):
    one, pool = engine(), make_pool(health_every_s=0.02, health_timeout_s=1.5, strikes=1)
    await pool.add(BackendSpec(url=one.url))
    backend = pool._backends[one.url]
    asked = []

    async def describe():
        asked.append(1)
        await asyncio.Event().wait()

    monkeypatch.setattr(backend.dialect, "describe", describe)
    await eventually(lambda: len(asked) >= 2)
    assert backend.healthy


async def test_a_server_that_is_gone_for_days_is_still_asked(make_pool, engine, clock, eventually):
    """The pauses double: after a thousand of them the number fits no float any more."""
    one = engine()
    pool = make_pool(retry_first_s=1e-300, retry_last_s=0.001)
    await pool.add(BackendSpec(url=one.url))
    await asyncio.to_thread(one.stop)
    backend, asked = pool._backends[one.url], 0
    check = backend.check

    async def counted(timeout):
        nonlocal asked
        asked += 1
        await check(timeout)

    backend.check = counted
    pool.set_aside(backend, "found dead by another task")
    await eventually(lambda: asked > 1100)
    await asyncio.to_thread(one.start)
    await eventually(lambda: backend.healthy)


async def test_a_restarted_engine_is_not_trusted_with_old_weights(pool, engine, clock, eventually):
    one = engine()
    await pool.add(BackendSpec(url=one.url))
    await asyncio.to_thread(one.stop)
    one.incarnation += 1
    await asyncio.to_thread(one.start)
    backend = pool._backends[one.url]
    pool.set_aside(backend, "found dead by another task")
    await eventually(lambda: "register it again" in (pool.status().backends[0].reason or ""))
    with pytest.raises(ModelFault, match="register it again") as caught:
        await pool.lease("job", wait_s=0, hold=clock.hold).ready()
    assert caught.value.code == "no_backend"
    await pool.add(BackendSpec(url=one.url))
    assert await pool.lease("job", wait_s=0, hold=clock.hold).generate(PROMPT, SAMPLING)


async def test_a_restart_that_no_call_met_is_noticed_too(make_pool, engine, clock, eventually):
    """Quicker than a health check, and between two calls: the old weights are gone all the same."""
    one, pool = engine(), make_pool(health_every_s=0.05)
    await pool.add(BackendSpec(url=one.url))
    one.incarnation += 1
    await eventually(lambda: "register it again" in (pool.status().backends[0].reason or ""))
    with pytest.raises(ModelFault, match="register it again"):
        await pool.lease("job", wait_s=0, hold=clock.hold).generate(PROMPT, SAMPLING)


async def test_a_call_under_way_on_a_changed_engine_is_made_elsewhere(make_pool, engine, clock, eventually):
    one, other, pool = engine(), engine(), make_pool(health_every_s=0.05)
    await pool.add(BackendSpec(url=one.url))
    one.hold()
    call = asyncio.create_task(pool.lease("job", wait_s=30, hold=clock.hold).generate(PROMPT, SAMPLING))
    await eventually(lambda: one.in_flight == 1)
    await pool.add(BackendSpec(url=other.url))
    one.incarnation += 1
    assert (await call).backend == other.url


@pytest.mark.parametrize("model", ["another", ""])
async def test_an_engine_that_came_back_as_another_one_may_come_back_as_itself(pool, engine, clock, eventually, model):
    one = engine()
    await pool.add(BackendSpec(url=one.url))
    first, one.model = one.model, model
    pool.set_aside(pool._backends[one.url], "found dead by another task")
    await eventually(lambda: "does not serve" in (pool.status().backends[0].reason or ""))
    one.model = first
    await eventually(lambda: pool.status().backends[0].healthy)
    assert await pool.lease("job", wait_s=30, hold=clock.hold).generate(PROMPT, SAMPLING)


async def test_a_rejected_call_is_not_tried_again(pool, engine, clock):
    engines = [engine(kind=FaultyEngine), engine(kind=FaultyEngine)]
    for one in engines:
        await pool.add(BackendSpec(url=one.url))
        one.fault = "error_400"
    with pytest.raises(ModelFault) as caught:
        await pool.lease("job", wait_s=30, hold=clock.hold).generate(PROMPT, SAMPLING)
    assert caught.value.code == "rejected"
    assert sum(backend.calls for backend in pool.status().backends) == 1
    assert all(backend.healthy for backend in pool.status().backends)


async def test_a_call_that_kills_every_server_ends(pool, engine, clock):
    """A poisonous prompt must not go round for ever, though every server is well again a moment later."""
    for _ in range(2):
        one = engine(kind=FaultyEngine)
        await pool.add(BackendSpec(url=one.url))
        one.fault = "error_500"
    with pytest.raises(ModelFault, match="answered 500") as caught:
        await pool.lease("job", wait_s=30, hold=clock.hold).generate(PROMPT, SAMPLING)
    assert caught.value.code == "unreachable"
    assert sum(backend.calls for backend in pool.status().backends) == pool.settings.attempts
