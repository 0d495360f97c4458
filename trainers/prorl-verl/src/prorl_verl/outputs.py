"""From a finished rollout to the rows that verl trains on."""

from __future__ import annotations

from collections.abc import Sequence

from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from prorl.client import Sample
from prorl.wire import RolloutResult


def output_of(result: RolloutResult, sample: Sample, step: int, *, dropped: int = 0) -> AgentLoopOutput:
    """One segment as verl's row. ``step`` stands in where the engines name no version."""
    steps = [int(version) for version in set(sample.versions) if version.isdigit()] or [step]
    masked = 1 not in sample.mask
    timing = result.timing
    return AgentLoopOutput(
        prompt_ids=sample.prompt_ids,
        response_ids=sample.response_ids,
        response_mask=sample.mask,
        response_logprobs=sample.logprobs,
        reward_score=sample.reward,
        num_turns=len(result.trajectory.turns),
        metrics=AgentLoopMetrics(
            generate_sequences=timing.model_s, tool_calls=timing.tools_s, compute_score=timing.eval.worked_s
        ),
        extra_fields={
            "reward_extra_info": {  # the same keys in every row: verl makes columns of them
                "reward": sample.reward,
                "resolved": float(result.resolved and not masked),
                "masked": float(masked),
                "cut": float(sample.cut),
                "segments_dropped": float(dropped),
            },
            "min_global_steps": min(steps),
            "max_global_steps": max(steps),
            "job_id": result.job_id,
        },
    )


def in_order(samples: Sequence[Sample]) -> list[Sample]:
    """The main agent's last segment at the end: verl takes the last row of a rollout as the one that counts for the
    group's advantages, and gives the others its advantage."""
    return sorted(samples, key=lambda sample: (sample.agent == "", sample.segment))
