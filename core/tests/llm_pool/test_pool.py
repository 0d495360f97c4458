"""Which task goes where: sticky, counted per task, and never lost."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from prorl.api import ConfigError, ModelFault
from prorl.testing.engines import free_port
from prorl.testing.faulty import FaultyEngine
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


async def test_an_engine_too_busy_to_describe_itself_stays_in_use(make_pool, engine, clock, eventually, monkeypatch):
    one, pool = engine(), make_pool(health_every_s=0.02, health_timeout_s=0.2, strikes=1)
    await pool.add(BackendSpec(url=one.url))
    backend = pool._backends[one.url]
    asked = []

    async def describe():
        asked.append(1)
        await asyncio.Event().wait()

    monkeypatch.setattr(backend.dialect, "describe", describe)
    await eventually(lambda: len(asked) >= 3)
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


async def test_what_cannot_be_registered(pool, engine):
    one = engine()
    with pytest.raises(
        ConfigError, match=r"unknown dialect 'v11m'; known: llamacpp, nemo-rl, openai-chat, sglang, vllm"
    ):
        await pool.add(BackendSpec(url=one.url, dialect="v11m"))
    with pytest.raises(ConfigError, match=r"does not serve the model 'other'; it serves: scripted"):
        await pool.add(BackendSpec(url=one.url, model="other"))
    with pytest.raises(ConfigError, match="speaks none of: llamacpp, nemo-rl, openai-chat, sglang, vllm"):
        await pool.add(BackendSpec(url=one.url + "/v1"))
    with pytest.raises(ModelFault) as caught:
        await pool.add(BackendSpec(url=f"http://127.0.0.1:{free_port()}"))
    assert caught.value.code == "unreachable"
    with pytest.raises(ConfigError, match="not registered"):
        await pool.clear(["http://127.0.0.1:1"])
    assert pool.status().backends == []


async def test_a_named_dialect_that_the_server_does_not_speak(pool, engine):
    with pytest.raises(ModelFault):
        await pool.add(BackendSpec(url=engine().url, dialect="llamacpp"))
    assert pool.status().backends == []
