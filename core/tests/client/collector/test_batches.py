"""Asynchronous DAPO on a virtual clock: full servers, informative groups, and nothing thrown away that can be kept."""

import asyncio
from collections import Counter

import pytest

from prorl.client import Attempt, CollectorSettings, GroupCollector, Prompt
from prorl.client.roster import Roster
from prorl.testing.virtualtime import virtual_run
from prorl.wire import JobRequest, RolloutResult


def test_a_request_that_names_its_group_keeps_it(rollouts):
    service = rollouts(lambda rng, n, sample: (1.0, float(sample)))
    named = (Prompt(prompt_id=f"p{n}", request=JobRequest(instance={"n": n}, group_id="of-both")) for n in range(2))

    async def main():
        async with GroupCollector(service, named, CollectorSettings(samples=2, wanted=2, in_flight=4)) as collector:
            return await collector.collect(0)

    assert len({group.group_id for group in virtual_run(main()).groups}) == 2
    assert {request.group_id for request in service.requests} == {"of-both"}
    assert len({request.job_id for request in service.requests}) == 4


def test_k_informative_groups_and_then_it_stops(rollouts, make, check):
    service = rollouts()

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


def test_the_servers_are_kept_full(rollouts, make):
    service = rollouts()

    async def main():
        async with make(service, wanted=20) as collector:
            await collector.collect(0)

    virtual_run(main())
    full = [running for _, running in service.busy[16:-40]]
    assert min(full) >= 15, "a rollout that ended was replaced at once"
    assert max(full) == 16


def test_finished_siblings_are_kept_over_the_end_of_a_batch(rollouts, make):
    """The slow sample of the second prompt is cancelled with the first batch: only it is rolled out again."""

    def plan(rng, n, sample):
        return (1000.0 if (n, sample) == (1, 1) else 1.0), float(sample)

    service = rollouts(plan)

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


def test_old_samples_are_rolled_out_anew(rollouts, make, check):
    def plan(rng, n, sample):
        return (50.0 if sample else 1.0), float(sample)

    service = rollouts(plan)

    async def main():
        async with make(service, samples=2, wanted=1, in_flight=4, max_lag=0) as collector:
            first, second = await collector.collect(0), await collector.collect(1)
            assert second.stale >= 1
            check(first, service, samples=2, max_lag=0)
            check(second, service, samples=2, max_lag=0)

    virtual_run(main())


def test_a_rollout_that_ends_while_the_step_moves_on_is_too_old_as_well(prompts):
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


def test_carried_rollouts_go_on_while_the_trainer_trains(rollouts, make, check):
    service = rollouts()

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


def test_the_last_batch_is_short(rollouts, make):
    service = rollouts(lambda rng, n, sample: (1.0, float(sample)))

    async def main():
        async with make(service, count=7, samples=2) as collector:
            return [batch async for batch in collector.stream()]

    batches = virtual_run(main())
    assert [len(batch.groups) for batch in batches] == [3, 3, 1]
    assert (batches[-1].complete, batches[-1].why) == (False, "the prompts are used up")


@pytest.mark.parametrize(
    "wrong", [{"samples": 0}, {"wanted": 0}, {"in_flight": 0}, {"min_samples": 9}, {"max_lag": -1}]
)
def test_settings_that_cannot_work(rollouts, make, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        make(rollouts(), **wrong)


def test_a_prompts_name_must_be_usable():
    with pytest.raises(ValueError, match="prompt_id"):
        Prompt(prompt_id="a b", request=JobRequest(instance={}))
