"""From a finished rollout to the rows that verl trains on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from prorl.client import Sample
from prorl.wire import RolloutResult


def output_of(result: RolloutResult, sample: Sample, step: int, *, dropped: int = 0) -> AgentLoopOutput:
    """One segment as verl's row. ``step`` stands in where the engines name no version."""
    steps = [int(version) if version.isdigit() else step for version in dict.fromkeys(sample.versions) if version]
    return AgentLoopOutput(
        prompt_ids=sample.prompt_ids,
        response_ids=sample.response_ids,
        response_mask=sample.mask,
        response_logprobs=sample.logprobs,
        reward_score=result.reward,
        num_turns=len(result.trajectory.turns),
        metrics=_metrics(result),
        extra_fields=_extra(
            result,
            steps or [step],
            resolved=float(result.resolved),
            cut=float(sample.cut),
            segments_dropped=float(dropped),
        ),
    )


def masked_output(result: RolloutResult, step: int, pad_id: int) -> AgentLoopOutput:
    """A row that trains nothing, where verl must have one: one token that nobody sampled, with mask 0."""
    return AgentLoopOutput(
        prompt_ids=[pad_id],
        response_ids=[pad_id],
        response_mask=[0],
        response_logprobs=[0.0],
        reward_score=0.0,
        num_turns=len(result.trajectory.turns),
        metrics=_metrics(result),
        extra_fields=_extra(result, [step], masked=1.0),
    )


def in_order(samples: Sequence[Sample]) -> list[Sample]:
    """The main agent's last segment at the end: verl takes the last row of a rollout as the one that counts for the
    group's advantages, and gives the others its advantage."""
    return sorted(samples, key=lambda sample: (sample.agent == "", sample.segment))


def _metrics(result: RolloutResult) -> AgentLoopMetrics:
    timing = result.timing
    return AgentLoopMetrics(
        generate_sequences=timing.model_s, tool_calls=timing.tools_s, compute_score=timing.eval.worked_s
    )


def _extra(result: RolloutResult, steps: Sequence[int], **numbers: float) -> dict[str, Any]:
    """``reward_extra_info`` has the same keys in every row: verl makes columns of them."""
    info = {"resolved": 0.0, "masked": 0.0, "cut": 0.0, "segments_dropped": 0.0, **numbers}
    return {
        "reward_extra_info": {"reward": 0.0 if info["masked"] else result.reward, **info},
        "min_global_steps": min(steps),
        "max_global_steps": max(steps),
        "turn_scores": [],
        "tool_rewards": [],
        "job_id": result.job_id,
    }
