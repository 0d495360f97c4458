"""Which task goes where: sticky, counted per task, and bounded in front of the client."""

from __future__ import annotations

import asyncio
from collections import Counter

from prorl.wire import BackendSpec, SamplingParams

PROMPT = [72, 73, 74]
SAMPLING = SamplingParams(max_tokens=64)


async def test_all_turns_of_a_task_stay_on_one_backend_and_count_once(pool, engine, clock):
    engines = [engine(), engine()]
    for one in engines:
        await pool.add(BackendSpec(url=one.url))
    leases = [pool.lease(f"job-{i}", wait_s=0, hold=clock.hold) for i in range(10)]
    places = Counter()
    for lease in leases:
        replies = [await lease.generate(PROMPT, SAMPLING) for _ in range(4)]
        assert len({reply.backend for reply in replies}) == 1
        places[replies[0].backend] += 1
    assert sorted(places.values()) == [5, 5]
    assert [backend.assigned for backend in pool.status().backends] == [5, 5]
    assert sum(backend.calls for backend in pool.status().backends) == 40
    assert sorted(len(one.requests) for one in engines) == [20, 20]
    assert clock.times == 0


async def test_late_joiner_gets_its_share_and_no_flood(pool, engine, clock):
    old = [engine(), engine()]
    for one in old:
        await pool.add(BackendSpec(url=one.url))
    for i in range(600):
        await pool.lease(f"early-{i}", wait_s=0, hold=clock.hold).ready()
    late = engine()
    await pool.add(BackendSpec(url=late.url))
    for i in range(300):
        await pool.lease(f"late-{i}", wait_s=0, hold=clock.hold).ready()
    shown = {backend.url: backend.assigned for backend in pool.status().backends}
    assert shown == {old[0].url: 400, old[1].url: 400, late.url: 100}


async def test_calls_in_flight_break_ties(pool, engine, clock, eventually):
    busy, idle = engine(), engine()
    for one in (busy, idle):
        await pool.add(BackendSpec(url=one.url))
        one.hold()
    first = pool.lease("first", wait_s=0, hold=clock.hold)
    second = pool.lease("second", wait_s=0, hold=clock.hold)
    on_first, on_second = await first.ready(), await second.ready()  # one task each: a tie
    call = asyncio.create_task(first.generate(PROMPT, SAMPLING))
    await eventually(lambda: on_first.in_flight == 1)
    third = await pool.lease("third", wait_s=0, hold=clock.hold).ready()
    assert third is on_second
    for one in (busy, idle):
        one.let_go()
    await call


async def test_concurrency_is_bounded_in_front_of_the_client(make_pool, engine, clock, eventually):
    pool = make_pool(concurrency=3)
    one = engine()
    await pool.add(BackendSpec(url=one.url))
    one.hold()
    leases = [pool.lease(f"job-{i}", wait_s=0, hold=clock.hold) for i in range(10)]
    calls = [asyncio.create_task(lease.generate(PROMPT, SAMPLING)) for lease in leases]
    await eventually(lambda: one.in_flight == 3 and clock.held == 7)
    # those that wait for a slot must notice that the backend was cleared
    other = engine()
    await pool.clear()
    await pool.add(BackendSpec(url=other.url))
    one.let_go()
    replies = await asyncio.gather(*calls)
    assert Counter(reply.backend for reply in replies) == {one.url: 3, other.url: 7}
    assert clock.held == 0
