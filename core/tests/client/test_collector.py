"""Asynchronous DAPO on a virtual clock: whatever rollouts do, groups are right, and nothing waits for ever."""

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorl.client import Attempt, ClientError, CollectorSettings, GroupCollector, Prompt, ServerUnreachable, Stalled
from prorl.client.roster import Roster
from prorl.testing.virtualtime import WaitsForEver, virtual_run
from prorl.wire import CancelReply, JobRequest, RolloutError, RolloutResult


class Service:
    """Rollouts that take their time and end as they are told to: ``plan(rng, group, sample)`` gives seconds and a
    reward, a fault's kind, or an exception. Keeps what was asked of it."""

    def __init__(self, plan, *, seed=0, deaf=False):
        self.plan, self.rng, self.deaf = plan, random.Random(seed), deaf
        self.running, self.requests, self.results, self.busy = {}, [], {}, []
        self.cancelled = set()

    async def process(self, request):
        assert request.job_id not in self.results, "a job id was used twice"
        self.requests.append(request)
        sample = int(request.job_id.rpartition("-")[2].split(".")[0])
        seconds, outcome = self.plan(self.rng, request.instance["n"], sample)
        self.running[request.job_id] = stop = asyncio.Event()
        self.busy.append((asyncio.get_running_loop().time(), len(self.running)))
        try:
            async with asyncio.timeout(seconds):
                await stop.wait()
            outcome = "cancelled"
        except TimeoutError:
            pass
        finally:
            del self.running[request.job_id]
            self.busy.append((asyncio.get_running_loop().time(), len(self.running)))
        if isinstance(outcome, Exception):
            raise outcome
        fault = outcome if isinstance(outcome, str) else None
        result = RolloutResult(
            job_id=request.job_id,
            status="completed" if fault is None else "failed",
            stage="eval",
            handler="h",
            group_id=request.group_id,
            error=None if fault is None else RolloutError(kind=fault, message="no"),
            reward=0.0 if fault else outcome,
            mask_sample=fault is not None,
        )
        self.results[request.job_id] = result
        return result

    async def cancel(self, *, job_ids):
        if self.deaf:
            raise ServerUnreachable("http://x", "gone", tried_s=1.0)
        self.cancelled.update(job_ids)
        for job_id in job_ids:
            if job_id in self.running:
                self.running[job_id].set()
        known = [job_id for job_id in job_ids if job_id in self.running or job_id in self.results]
        return CancelReply(cancelled=known, unknown=sorted(set(job_ids).difference(known)))


def prompts(count=10**9):
    return (Prompt(prompt_id=f"p{n}", request=JobRequest(instance={"n": n})) for n in range(count))


def coin(rng, n, sample):
    return rng.uniform(1, 100), float(rng.random() < 0.5)


def make(service, count=10**9, **changes):
    chosen = {"samples": 4, "wanted": 3, "in_flight": 16, **changes}
    return GroupCollector(service, prompts(count), CollectorSettings(**chosen), run_id="run")


def check(batch, service, *, samples, max_lag):
    """What holds for every batch."""
    for group in batch.groups:
        assert len(group.results) == samples
        assert len({result.job_id for result in group.results}) == samples, "no result stands for another"
        for result in group.results:
            assert service.results[result.job_id] is result
            assert not result.mask_sample
            assert result.group_id == group.group_id
        assert max(group.rewards) > min(group.rewards)
        assert batch.step - group.oldest_step <= max_lag
    assert len({group.prompt.prompt_id for group in batch.groups}) == len(batch.groups)


def test_a_request_that_names_its_group_keeps_it():
    service = Service(lambda rng, n, sample: (1.0, float(sample)))
    named = (Prompt(prompt_id=f"p{n}", request=JobRequest(instance={"n": n}, group_id="of-both")) for n in range(2))

    async def main():
        async with GroupCollector(service, named, CollectorSettings(samples=2, wanted=2, in_flight=4)) as collector:
            return await collector.collect(0)

    assert len({group.group_id for group in virtual_run(main()).groups}) == 2
    assert {request.group_id for request in service.requests} == {"of-both"}
    assert len({request.job_id for request in service.requests}) == 4


def test_k_informative_groups_and_then_it_stops():
    service = Service(coin)

    async def main():
        async with make(service) as collector:
            batch = await collector.collect(0)
            check(batch, service, samples=4, max_lag=1)
            assert batch.complete
            assert not service.running, "the rest was cancelled at the service"
            assert batch.cancelled == len(service.cancelled) > 0
            again = await collector.collect(1)
            check(again, service, samples=4, max_lag=1)
            return {group.group_id for group in batch.groups} & {group.group_id for group in again.groups}

    assert virtual_run(main()) == set(), "no group is handed out twice"


def test_the_servers_are_kept_full():
    service = Service(coin)

    async def main():
        async with make(service, wanted=20) as collector:
            await collector.collect(0)

    virtual_run(main())
    full = [running for _, running in service.busy[16:-40]]
    assert min(full) >= 15, "a rollout that ended was replaced at once"
    assert max(full) == 16


def test_finished_siblings_are_kept_over_the_end_of_a_batch():
    """The slow sample of the second prompt is cancelled with the first batch: only it is rolled out again."""

    def plan(rng, n, sample):
        return (1000.0 if (n, sample) == (1, 1) else 1.0), float(sample)

    service = Service(plan)

    async def main():
        async with make(service, samples=2, wanted=1, in_flight=4) as collector:
            first = await collector.collect(0)
            assert [group.prompt.prompt_id for group in first.groups] == ["p0"]
            service.plan = lambda rng, n, sample: (1.0, float(sample))
            return await collector.collect(1)

    batch = virtual_run(main())
    asked = Counter((request.instance["n"], request.job_id.rsplit(".", 1)[0][-1]) for request in service.requests)
    assert [group.prompt.prompt_id for group in batch.groups] == ["p1"]
    assert asked[1, "0"] == 1, "its sibling was through"
    assert asked[1, "1"] == 2


def test_old_samples_are_rolled_out_anew():
    def plan(rng, n, sample):
        return (50.0 if sample else 1.0), float(sample)

    service = Service(plan)

    async def main():
        async with make(service, samples=2, wanted=1, in_flight=4, max_lag=0) as collector:
            first, second = await collector.collect(0), await collector.collect(1)
            assert second.stale >= 1
            check(first, service, samples=2, max_lag=0)
            check(second, service, samples=2, max_lag=0)

    virtual_run(main())


def test_a_rollout_that_ends_while_the_step_moves_on_is_too_old_as_well():
    roster = Roster(prompts(), CollectorSettings(samples=2, wanted=1, in_flight=2, max_lag=1))
    place = roster.next_place()
    roster.begin(2)
    result = RolloutResult(job_id=place.job_id, status="completed", stage="eval", handler="h", reward=1.0)
    roster.book(place, Attempt(job_id=place.job_id, step=0, result=result))
    assert not place.group.kept
    assert roster.batch.stale == 1
    again = [roster.next_place() for _ in range(2)]
    assert sorted(each.sample for each in again) == [0, 1], "it is rolled out anew"
    assert {each.step for each in again} == {2}


def test_carried_rollouts_go_on_while_the_trainer_trains():
    service = Service(coin)

    async def main():
        async with make(service, carry=True, max_lag=2) as collector:
            for step in range(6):
                batch = await collector.collect(step)
                check(batch, service, samples=4, max_lag=2)
                assert batch.complete
                await asyncio.sleep(30)
        assert not service.running

    virtual_run(main())
    assert len(service.cancelled) <= 16, "only the last ones, at the end"


def test_a_failed_sample_is_tried_again_and_never_replaced_by_a_copy():
    service = Service(lambda rng, n, sample: (1.0, "sandbox" if rng.random() < 0.4 else float(sample % 2)))

    async def main():
        async with make(service, attempts=10) as collector:
            batch = await collector.collect(0)
            check(batch, service, samples=4, max_lag=1)
            assert batch.troubles["sandbox"] > 0
            assert batch.complete

    virtual_run(main())


def test_a_group_that_cannot_complete_says_so():
    service = Service(lambda rng, n, sample: (1.0, "grader" if n == 0 and sample == 2 else float(sample % 2)))

    async def main():
        async with make(service, wanted=1, in_flight=4) as collector:
            return await collector.collect(0)

    batch = virtual_run(main())
    (broken,) = batch.incomplete
    assert broken.prompt.prompt_id == "p0"
    assert broken.troubles() == {"grader": 2}
    assert len(broken.results) == 3
    assert [group.prompt.prompt_id for group in batch.groups] == ["p1"]


def test_a_smaller_group_if_that_is_allowed():
    service = Service(lambda rng, n, sample: (1.0, "grader" if sample == 2 else float(sample % 2)))

    async def main():
        async with make(service, wanted=1, min_samples=3) as collector:
            return await collector.collect(0)

    assert [len(group.results) for group in virtual_run(main()).groups] == [3]


def test_when_nothing_works_it_ends_with_the_reasons():
    service = Service(lambda rng, n, sample: (1.0, ServerUnreachable("http://x", "refused", tried_s=1.0)))

    async def main():
        async with make(service, give_up_after=5) as collector:
            await collector.collect(0)

    with pytest.raises(Stalled, match=r"last 5 groups .*lost/ServerUnreachable"):
        virtual_run(main())
    assert len(service.requests) < 100


def test_when_nothing_teaches_it_ends_too():
    service = Service(lambda rng, n, sample: (1.0, 1.0))

    async def main():
        async with make(service, max_groups=7) as collector:
            batch = await collector.collect(0)
            assert not batch.complete
            assert batch.uninformative >= 7
            assert batch.why == f"{batch.uninformative} groups ended"
            return (await collector.collect(1)).uninformative

    assert 7 <= virtual_run(main()) < 14


def test_the_last_batch_is_short():
    service = Service(lambda rng, n, sample: (1.0, float(sample)))

    async def main():
        async with make(service, count=7, samples=2) as collector:
            return [batch async for batch in collector.stream()]

    batches = virtual_run(main())
    assert [len(batch.groups) for batch in batches] == [3, 3, 1]
    assert (batches[-1].complete, batches[-1].why) == (False, "the prompts are used up")


def test_a_rollout_that_never_ends_is_lost_after_its_time():
    slow = iter([10**9])
    service = Service(lambda rng, n, sample: (next(slow, 1.0), float(sample % 2)))

    async def main():
        async with make(service, count=1, rollout_s=60) as collector:
            batch = await collector.collect(0)
            assert asyncio.get_running_loop().time() == pytest.approx(61)
            assert len(batch.groups) == 1
            return batch

    assert virtual_run(main()).troubles == {"lost/ClientError": 1}
    assert len(service.cancelled) == 1, "and was cancelled at the service"


def test_a_service_that_hears_no_cancel_does_not_hold_up_the_batch():
    service = Service(coin, deaf=True)

    async def main():
        async with make(service, cancel_s=2.0) as collector:
            return await collector.collect(0)

    assert virtual_run(main()).complete


def test_what_no_client_should_raise_comes_out():
    service = Service(lambda rng, n, sample: (1.0, ZeroDivisionError("bug")))

    async def main():
        async with make(service) as collector:
            await collector.collect(0)

    with pytest.raises(ZeroDivisionError):
        virtual_run(main())


def test_a_cancelled_collect_leaves_nothing_running():
    service = Service(coin)

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
def test_a_source_of_prompts_that_breaks_is_told_and_leaves_nothing_running(carry, good):
    service = Service(lambda rng, n, sample: (1.0 + n, float(sample % 2)))

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
def test_whatever_happens(outcomes, seed, samples, wanted, in_flight, attempts, carry, max_lag, count, slow):
    """It ends; every batch holds; every prompt that was begun is accounted for; nothing is left running."""

    def plan(rng, n, sample):
        return (10**7 if rng.random() < slow else rng.uniform(0.1, 100)), rng.choice(outcomes)

    service = Service(plan, seed=seed)
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


@pytest.mark.parametrize(
    "wrong", [{"samples": 0}, {"wanted": 0}, {"in_flight": 0}, {"min_samples": 9}, {"max_lag": -1}]
)
def test_settings_that_cannot_work(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        make(Service(coin), **wrong)


def test_a_prompts_name_must_be_usable():
    with pytest.raises(ValueError, match="prompt_id"):
        Prompt(prompt_id="a b", request=JobRequest(instance={}))
