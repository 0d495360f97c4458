"""A service whose rollouts take their time and end as they are told to, and what holds for every batch made of them."""

import asyncio
import random

import pytest

from prorl.client import CollectorSettings, GroupCollector, Prompt, ServerUnreachable
from prorl.wire import CancelReply, JobRequest, RolloutError, RolloutResult


def coin(rng, n, sample):
    return rng.uniform(1, 100), float(rng.random() < 0.5)


class Service:
    """Rollouts that take their time and end as they are told to: ``plan(rng, group, sample)`` gives seconds and a
    reward, a fault's kind, or an exception. Keeps what was asked of it."""

    def __init__(self, plan=coin, *, seed=0, deaf=False):
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


@pytest.fixture(scope="session")
def rollouts():
    """``rollouts(plan)``: a service of them."""
    return Service


@pytest.fixture(scope="session")
def prompts():
    """``prompts(count)``: that many, or no end of them."""

    def some(count=10**9):
        return (Prompt(prompt_id=f"p{n}", request=JobRequest(instance={"n": n})) for n in range(count))

    return some


@pytest.fixture(scope="session")
def make(prompts):
    """``make(service, count, samples=4, ...)``: a collector over so many prompts."""

    def collector(service, count=10**9, **changes):
        chosen = {"samples": 4, "wanted": 3, "in_flight": 16, **changes}
        return GroupCollector(service, prompts(count), CollectorSettings(**chosen), run_id="run")

    return collector


@pytest.fixture(scope="session")
def check():
    """``check(batch, service, samples=4, max_lag=1)``: what holds for every batch."""
    return check_batch


def check_batch(batch, service, *, samples, max_lag):
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
