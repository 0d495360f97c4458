"""GRPO on one page: samples with their rewards in, one clipped step out.

The log-probabilities that a sample brings from the engine are those of the policy that sampled it. As long as the
trainer holds the same weights its own must be the same, token for token; :class:`StepReport` says by how much they
differ, and so how far from 1 the first importance ratio is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from prorl.client import Sample, pad

CLIP = 0.2


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """``gap``: the largest ``|engine logprob - trainer logprob|`` of a sampled token; ``ratio``: the largest
    ``|importance ratio - 1|`` before the step."""

    loss: float
    gap: float
    ratio: float
    tokens: int


def advantages(groups: Sequence[Sequence[float]]) -> list[float]:
    """Reward minus the group's mean (not divided by its deviation, which makes rare luck loud)."""
    return [reward - sum(rewards) / len(rewards) for rewards in groups for reward in rewards]


def logprobs_of(model: Any, samples: Sequence[Sample], *, pad_id: int) -> tuple[Any, Any, Any]:
    """The model's log-probability of every response token, the engine's, and the mask: ``[samples, response]`` each."""
    batch = pad(samples, pad_id=pad_id)
    prompts, responses = torch.tensor(batch.prompts), torch.tensor(batch.responses)
    attention = torch.tensor(batch.attention)
    positions = (attention.cumsum(1) - 1).clamp(min=0)  # prompts are padded at the left
    ids = torch.cat([prompts, responses], dim=1)
    logits = model(input_ids=ids, attention_mask=attention, position_ids=positions, use_cache=False).logits
    width = responses.shape[1]
    own = logits[:, -width - 1 : -1].log_softmax(-1).gather(-1, responses[..., None])[..., 0]
    return own, torch.tensor(batch.logprobs), torch.tensor(batch.mask)


def grpo_step(
    model: Any, optimizer: Any, samples: Sequence[Sample], advantage: Sequence[float], *, pad_id: int
) -> StepReport:
    """One step on the clipped objective; every sampled token counts the same. ``advantage``: one per sample."""
    own, engine, mask = logprobs_of(model, samples, pad_id=pad_id)
    gain = torch.tensor(advantage)[:, None]
    ratio = (own - engine).exp()
    objective = torch.minimum(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain)
    loss = -(objective * mask).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        gap = ((own - engine).abs() * mask).max().item()
        off = ((ratio - 1).abs() * mask).max().item()
    return StepReport(loss=loss.item(), gap=gap, ratio=off, tokens=int(mask.sum()))
