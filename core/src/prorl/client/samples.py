"""From a finished rollout to what a policy-gradient step takes: the one place where a trainer's numbers are made.

Each segment with sampled tokens becomes one sample: everything up to its first sampled token is the *prompt*, the rest
up to its last sampled token the *response*, in which rendered tokens have mask 0. Before anything is handed out the
trajectory's structure and certificate are checked (:mod:`prorl.wire.soundness`): no trainer learns from a trajectory
that was changed on its way, and no token is ever re-encoded here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from prorl.client.errors import Portable
from prorl.wire.results import RolloutResult
from prorl.wire.soundness import check_result
from prorl.wire.trajectory import Segment

Reason = Literal["masked", "not_trainable", "unsound", "no_tokens", "prompt_too_long", "response_too_long"]


class SampleRules(msgspec.Struct, frozen=True, kw_only=True):
    """What a trainer can take, in tokens. A response over ``max_response`` is cut at its end (``cut``: what is left was
    still sampled after exactly its prefix) or the sample is refused (``refuse``). A prompt over ``max_prompt`` is
    refused in either case: cut, it would no longer be what the policy saw. ``agents``: only these agents' segments
    (``None``: all). ``key``: the server's key, where results must carry its signature."""

    max_prompt: int | None = None
    max_response: int | None = None
    overlong: Literal["cut", "refuse"] = "cut"
    agents: tuple[str, ...] | None = None
    key: bytes | None = None


class Sample(msgspec.Struct, kw_only=True):
    """Parallel lists over the response; ``logprobs`` are 0.0 and ``versions`` ``""`` where ``mask`` is 0. ``reward`` is
    the rollout's. ``cut``: tokens were left out at the end."""

    job_id: str
    group_id: str | None
    segment: int
    agent: str
    prompt_ids: list[int]
    response_ids: list[int]
    mask: list[int]
    logprobs: list[float]
    versions: list[str]
    reward: float
    cut: bool = False


class Untrainable(Portable):
    """A rollout that must not be trained on; ``reason`` is a slug."""

    def __init__(self, result: RolloutResult, reason: Reason, message: str) -> None:
        super().__init__(f"{result.job_id}: {message}")
        self.job_id = result.job_id
        self.reason = reason


def samples_of(result: RolloutResult, rules: SampleRules | None = None) -> list[Sample]:
    """One sample per segment that has sampled tokens. Raises :class:`Untrainable`."""
    rules = rules or SampleRules()
    trajectory = result.trajectory
    if result.mask_sample:
        why = result.error.message if result.error is not None else "its verdict says so"
        raise Untrainable(result, "masked", f"the sample is masked: {why}")
    if not trajectory.trainable:
        notes = "; ".join(trajectory.notes) or "its tokens did not come from an engine"
        raise Untrainable(result, "not_trainable", notes)
    if found := check_result(result, key=rules.key):
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise Untrainable(result, "unsound", f"{found[0]}{more}")
    samples = [
        _sample(result, index, segment, rules)
        for index, segment in enumerate(trajectory.segments)
        if 1 in segment.loss_mask and (rules.agents is None or segment.agent in rules.agents)
    ]
    if not samples:
        raise Untrainable(result, "no_tokens", "the policy sampled no token")
    return samples


def _sample(result: RolloutResult, index: int, segment: Segment, rules: SampleRules) -> Sample:
    start = segment.loss_mask.index(1)
    end = len(segment.loss_mask) - segment.loss_mask[::-1].index(1)
    if rules.max_prompt is not None and start > rules.max_prompt:
        raise Untrainable(
            result, "prompt_too_long", f"segment {index} has a prompt of {start} tokens, {rules.max_prompt} are allowed"
        )
    last = end if rules.max_response is None else min(end, start + rules.max_response)
    if last < end and rules.overlong == "refuse":
        raise Untrainable(
            result,
            "response_too_long",
            f"segment {index} has a response of {end - start} tokens, {rules.max_response} are allowed",
        )
    versions = [span.version for span in segment.versions for _ in range(span.count)]
    return Sample(
        job_id=result.job_id,
        group_id=result.group_id,
        segment=index,
        agent=segment.agent,
        prompt_ids=segment.tokens[:start],
        response_ids=segment.tokens[start:last],
        mask=segment.loss_mask[start:last],
        logprobs=[0.0 if logprob is None else logprob for logprob in segment.logprobs[start:last]],
        versions=versions[start:last],
        reward=result.reward,
        cut=last < end,
    )


def stand_in(result: RolloutResult, token: int) -> Sample:
    """For a trainer that must have a row of every rollout, also of one that must not be trained on: ``token``, which
    nobody sampled, once as the prompt and once as the response, with mask 0 and reward 0."""
    return Sample(
        job_id=result.job_id,
        group_id=result.group_id,
        segment=0,
        agent="",
        prompt_ids=[token],
        response_ids=[token],
        mask=[0],
        logprobs=[0.0],
        versions=[""],
        reward=0.0,
    )


class Padded(msgspec.Struct, kw_only=True):
    """A batch of samples as rectangles of lists: prompts padded at the left, responses at the right, as most trainers
    lay them out. ``attention`` is 1 for real tokens of ``[prompt, response]``; pads have mask 0 and logprob 0.0."""

    prompts: list[list[int]]
    responses: list[list[int]]
    mask: list[list[int]]
    logprobs: list[list[float]]
    attention: list[list[int]]
    rewards: list[float]


def pad(samples: Sequence[Sample], *, pad_id: int, prompt: int | None = None, response: int | None = None) -> Padded:
    """``prompt`` and ``response`` are the widths (``None``: the longest). Raises ``ValueError`` for a sample that is
    longer: nothing is cut here."""
    width = prompt if prompt is not None else max((len(s.prompt_ids) for s in samples), default=0)
    room = response if response is not None else max((len(s.response_ids) for s in samples), default=0)
    for sample in samples:
        if len(sample.prompt_ids) > width or len(sample.response_ids) > room:
            size = f"{len(sample.prompt_ids)} + {len(sample.response_ids)}"
            raise ValueError(f"{sample.job_id}: {size} tokens do not fit {width} + {room}")
    return Padded(
        prompts=[[pad_id] * (width - len(s.prompt_ids)) + s.prompt_ids for s in samples],
        responses=[s.response_ids + [pad_id] * (room - len(s.response_ids)) for s in samples],
        mask=[s.mask + [0] * (room - len(s.mask)) for s in samples],
        logprobs=[s.logprobs + [0.0] * (room - len(s.logprobs)) for s in samples],
        attention=[
            [0] * (width - len(s.prompt_ids))
            + [1] * (len(s.prompt_ids) + len(s.response_ids))
            + [0] * (room - len(s.response_ids))
            for s in samples
        ],
        rewards=[s.reward for s in samples],
    )
