"""Rollouts that fail, never end or teach nothing: groups stay right, the reasons are told, and it comes to an end."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorl.client import ClientError, CollectorSettings, GroupCollector, ServerUnreachable, Stalled
from prorl.testing.virtualtime import WaitsForEver, virtual_run


def test_a_failed_sample_is_tried_again_and_never_replaced_by_a_copy(rollouts, make, check):
    service = rollouts(lambda rng, n, sample: (1.0, "sandbox" if rng.random() < 0.4 else float(sample % 2)))

    async def main():
        async with make(service, attempts=10) as collector:
            batch = await collector.collect(0)
            check(batch, service, samples=4, max_lag=1)
            assert batch.troubles["sandbox"] > 0
            assert batch.complete

    virtual_run(main())


def test_a_group_that_cannot_complete_says_so(rollouts, make):
    service = rollouts(lambda rng, n, sample: (1.0, "grader" if n == 0 and sample == 2 else float(sample % 2)))

    async def main():
        async with make(service, wanted=1, in_flight=4) as collector:
            return await collector.collect(0)

    batch = virtual_run(main())
    (broken,) = batch.incomplete
    assert broken.prompt.prompt_id == "p0"
    assert broken.troubles() == {"grader": 2}
    assert len(broken.results) == 3
    assert [group.prompt.prompt_id for group in batch.groups] == ["p1"]


def test_a_smaller_group_if_that_is_allowed(rollouts, make):
    service = rollouts(lambda rng, n, sample: (1.0, "grader" if sample == 2 else float(sample % 2)))

    async def main():
        async with make(service, wanted=1, min_samples=3) as collector:
            return await collector.collect(0)

    assert [len(group.results) for group in virtual_run(main()).groups] == [3]


def test_when_nothing_works_it_ends_with_the_reasons(rollouts, make):
    service = rollouts(lambda rng, n, sample: (1.0, ServerUnreachable("http://x", "refused", tried_s=1.0)))

    async def main():
        async with make(service, give_up_after=5) as collector:
            await collector.collect(0)

    with pytest.raises(Stalled, match=r"last 5 groups .*lost/ServerUnreachable"):
        virtual_run(main())
    assert len(service.requests) < 100


def test_when_nothing_teaches_it_ends_too(rollouts, make):
    service = rollouts(lambda rng, n, sample: (1.0, 1.0))

    async def main():
        async with make(service, max_groups=7) as collector:
            batch = await collector.collect(0)
            assert not batch.complete
            assert batch.uninformative >= 7
            assert batch.why == f"{batch.uninformative} groups ended"
            return (await collector.collect(1)).uninformative

    assert 7 <= virtual_run(main()) < 14


def test_a_rollout_that_never_ends_is_lost_after_its_time(rollouts, make):
    slow = iter([10**9])
    service = rollouts(lambda rng, n, sample: (next(slow, 1.0), float(sample % 2)))

    async def main():
        async with make(service, count=1, rollout_s=60) as collector:
            batch = await collector.collect(0)
            assert asyncio.get_running_loop().time() == pytest.approx(61)
            assert len(batch.groups) == 1
            return batch

    assert virtual_run(main()).troubles == {"lost/ClientError": 1}
    assert len(service.cancelled) == 1, "and was cancelled at the service"


def test_a_service_that_hears_no_cancel_does_not_hold_up_the_batch(rollouts, make):
    service = rollouts(deaf=True)

    async def main():
        async with make(service, cancel_s=2.0) as collector:
            return await collector.collect(0)

    assert virtual_run(main()).complete


def test_what_no_client_should_raise_comes_out(rollouts, make):
    service = rollouts(lambda rng, n, sample: (1.0, ZeroDivisionError("bug")))

    async def main():
        async with make(service) as collector:
            await collector.collect(0)

    with pytest.raises(ZeroDivisionError):
        virtual_run(main())


def test_a_cancelled_collect_leaves_nothing_running(rollouts, make):
    service = rollouts()

    async def main():
        collector = make(service)
        task = asyncio.create_task(collector.collect(0))
        await asyncio.sleep(5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not service.running
        return await collector.collect(0)

    assert virtual_run(main()).complete, "and may be called again"


@pytest.mark.parametrize(("carry", "good"), [(False, 2), (True, 5)], ids=["at once", "between two batches"])
def test_a_source_of_prompts_that_breaks_is_told_and_leaves_nothing_running(rollouts, prompts, carry, good):
    service = rollouts(lambda rng, n, sample: (1.0 + n, float(sample % 2)))

    def breaks():
        yield from prompts(good)
        raise OSError("the data set is gone")

    async def main():
        chosen = CollectorSettings(samples=2, wanted=1, in_flight=4, carry=carry)
        told, seen = None, []
        async with GroupCollector(service, breaks(), chosen) as collector:
            for step in range(20):
                try:
                    batch = await collector.collect(step)
                except OSError as error:
                    told = str(error)
                    continue
                seen += [group.prompt.prompt_id for group in batch.groups]
                if batch.why:
                    break
                await asyncio.sleep(3)
        assert told == "the data set is gone"
        assert sorted(seen) == [f"p{n}" for n in range(good)], "what had begun is not lost"
        assert batch.why == "the prompts are used up"
        assert not service.running

    virtual_run(main())


OUTCOMES = st.one_of(
    st.sampled_from([0.0, 1.0, 0.5]),
    st.sampled_from(["sandbox", "model", "grader", "timeout"]),
    st.just(ClientError("gone")),
)


@settings(deadline=None, max_examples=400)
@given(
    outcomes=st.lists(OUTCOMES, min_size=1, max_size=12),
    seed=st.integers(0, 10**6),
    samples=st.integers(2, 5),
    wanted=st.integers(1, 4),
    in_flight=st.integers(1, 20),
    attempts=st.integers(1, 3),
    carry=st.booleans(),
    max_lag=st.integers(0, 3),
    count=st.integers(0, 40),
    slow=st.floats(0, 0.3),
)
def test_whatever_happens(
    rollouts, make, check, outcomes, seed, samples, wanted, in_flight, attempts, carry, max_lag, count, slow
):
    """It ends; every batch holds; every prompt that was begun is accounted for; nothing is left running."""

    def plan(rng, n, sample):
        return (10**7 if rng.random() < slow else rng.uniform(0.1, 100)), rng.choice(outcomes)

    service = rollouts(plan, seed=seed)
    seen, dropped, incomplete = [], 0, []

    async def main():
        nonlocal dropped
        chosen = {"samples": samples, "wanted": wanted, "in_flight": in_flight, "attempts": attempts, "carry": carry}
        async with make(service, count, **chosen, max_lag=max_lag, rollout_s=500.0, give_up_after=1000) as collector:
            async for batch in collector.stream():
                check(batch, service, samples=samples, max_lag=max_lag)
                assert len(batch.groups) == wanted or batch.why
                seen.extend(group.prompt.prompt_id for group in batch.groups)
                incomplete.extend(group.prompt.prompt_id for group in batch.incomplete)
                dropped += batch.uninformative
                await asyncio.sleep(seed % 50)

    virtual_run(main())
    assert not service.running
    assert max((running for _, running in service.busy), default=0) <= in_flight
    assert len(set(seen) | set(incomplete)) + dropped == count
    assert len(set(seen)) == len(seen)


def test_a_wait_for_nothing_is_noticed():
    async def main():
        await asyncio.Event().wait()

    with pytest.raises(WaitsForEver):
        virtual_run(main())
