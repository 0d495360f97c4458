"""Updates of the weights: cleared and registered anew under running tasks, each call with one version."""

from __future__ import annotations

import asyncio

from prorl.wire import BackendSpec, SamplingParams

PROMPT = [72, 73, 74]
SAMPLING = SamplingParams(max_tokens=64)


async def test_clear_and_add_under_running_tasks(pool, engine, clock, eventually):
    """32 tasks in the middle of a call: it ends with the old version, the next one carries the new."""
    engines = [engine(), engine()]
    for one in engines:
        await pool.add(BackendSpec(url=one.url))
        one.hold()
    leases = [pool.lease(f"job-{i}", wait_s=30, hold=clock.hold) for i in range(32)]
    first = [asyncio.create_task(lease.generate(PROMPT, SAMPLING)) for lease in leases]
    await eventually(lambda: sum(one.in_flight for one in engines) == 32)
    assert (await pool.clear()).policy_version == "1"
    second = [asyncio.create_task(_after(task, lease)) for task, lease in zip(first, leases, strict=True)]
    for one in engines:
        one.let_go()
    before = await asyncio.gather(*first)
    await eventually(lambda: pool.status().waiting == 32)
    assert clock.held == 32  # no job pays for the update of the weights
    for one in engines:
        await pool.add(BackendSpec(url=one.url))
    after = await asyncio.gather(*second)
    assert {reply.policy_version for reply in before} == {"0"}
    assert {reply.policy_version for reply in after} == {"1"}
    assert [reply.backend for reply in before] == [reply.backend for reply in after]
    assert sorted(backend.assigned for backend in pool.status().backends) == [16, 16]
    assert clock.held == 0


async def _after(task, lease):
    await task
    return await lease.generate(PROMPT, SAMPLING)


async def test_a_server_that_does_not_come_back_is_not_waited_for_long(make_pool, engine, clock):
    gone, other = engine(), engine()
    pool = make_pool(settle_s=0.05)
    await pool.add(BackendSpec(url=gone.url))
    lease = pool.lease("job", wait_s=60, hold=clock.hold)
    await lease.ready()
    await pool.clear()
    await pool.add(BackendSpec(url=other.url))
    assert (await lease.ready()).url == other.url
    assert clock.times == 1


async def test_a_named_version_and_the_counted_ones(pool, engine, clock):
    one = engine()
    assert (await pool.add(BackendSpec(url=one.url, policy_version="step-7"))).policy_version == "step-7"
    lease = pool.lease("job", wait_s=0, hold=clock.hold)
    assert (await lease.generate(PROMPT, SAMPLING)).policy_version == "step-7"
    assert pool.status().policy_version == "step-7"
    assert (await pool.clear()).policy_version == "1"
    assert (await pool.add(BackendSpec(url=one.url))).policy_version == "1"
    assert (await lease.generate(PROMPT, SAMPLING)).policy_version == "1"
    assert (await pool.clear([one.url])).policy_version == "1"  # one address removed is not a new policy
    assert pool.status().backends == []


async def test_registering_an_address_again_keeps_nothing_stale(pool, engine, clock, eventually):
    one = engine()
    await pool.add(BackendSpec(url=one.url + "/"))
    lease = pool.lease("job", wait_s=0, hold=clock.hold)
    old = await lease.ready()
    one.hold()
    call = asyncio.create_task(lease.generate(PROMPT, SAMPLING))
    await eventually(lambda: one.in_flight == 1)
    one.max_context = 100
    await pool.add(BackendSpec(url=one.url, policy_version="new"))
    assert not old.closed  # the call under way still uses it
    one.let_go()
    assert (await call).policy_version == "0"
    new = await lease.ready()
    assert new is not old
    assert (new.info.max_context, new.assigned, new.calls) == (100, 1, 0)
    await eventually(lambda: old.closed)
    assert len(pool.status().backends) == 1
