"""One rollout for a trainer that asks for one at a time and wants something to train on: faults are tried again."""

from __future__ import annotations

import asyncio
import uuid

import msgspec

from prorl.client.collector import Rollouts
from prorl.client.groups import trouble_of
from prorl.client.samples import Sample, SampleRules, Untrainable, samples_of
from prorl.wire.jobs import JobRequest
from prorl.wire.results import RolloutResult

# Faults that the next rollout of the same task may be spared. Not the task's own, nor its time limits, nor a cancel.
PASSING_FAULTS = ("model", "sandbox", "grader", "internal")


class Tried(msgspec.Struct, kw_only=True):
    """The last rollout and its ``samples``; where there are none, ``untrainable`` says why it cannot be trained on."""

    result: RolloutResult
    samples: list[Sample] = []
    untrainable: Untrainable | None = None

    @property
    def trouble(self) -> str:
        """Why it cannot be trained on, in a word: its fault as ``kind/code``, else the reason; empty when it can."""
        if self.untrainable is None:
            return ""
        return self.untrainable.reason if self.result.error is None else trouble_of(self.result)


async def try_for_samples(
    rollouts: Rollouts, request: JobRequest, *, attempts: int = 2, rules: SampleRules | None = None
) -> Tried:
    """Run ``request`` until it can be trained on, as jobs ``<job_id>.1``, ``.2`` and so on: up to ``attempts`` times,
    where a fault that passes was in the way. Raises what ``rollouts.process`` raises."""
    name = request.job_id or f"job-{uuid.uuid4().hex}"
    for attempt in range(1, attempts + 1):
        result = await rollouts.process(msgspec.structs.replace(request, job_id=f"{name}.{attempt}"))
        try:
            return Tried(result=result, samples=await asyncio.to_thread(samples_of, result, rules))
        except Untrainable as error:
            tried = Tried(result=result, untrainable=error)
            if result.error is None or result.error.kind not in PASSING_FAULTS:
                break
    return tried
