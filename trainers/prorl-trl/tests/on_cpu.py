"""The two guards that keep ``AsyncGRPOTrainer`` from a CPU, taken away in tests and nowhere else: a FlashAttention 3
kernel, in whose place ordinary attention does the same sum, and the look-up of the GPU's speed."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from trl.experimental.async_grpo import async_grpo_trainer, packing


def flash_attn_varlen_func(
    query: Any, key: Any, value: Any, starts_q: Any, starts_k: Any, *_: Any, softmax_scale: float, **__: Any
) -> Any:
    """Causal attention of segments laid end to end, each to its path, aligned at the end. ``[token, head, dim]``"""
    out = torch.empty_like(query)
    repeats = query.shape[1] // key.shape[1]
    spans_q, spans_k = starts_q.tolist(), starts_k.tolist()
    for (q0, q1), (k0, k1) in zip(pairwise(spans_q), pairwise(spans_k), strict=True):
        keys, values = (part[k0:k1].repeat_interleave(repeats, dim=1).transpose(0, 1) for part in (key, value))
        scores = query[q0:q1].transpose(0, 1) @ keys.transpose(1, 2) * softmax_scale
        behind = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool).tril(diagonal=(k1 - k0) - (q1 - q0))
        out[q0:q1] = (scores.masked_fill(~behind, float("-inf")).softmax(-1) @ values).transpose(0, 1)
    return out


def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_flash_attn", lambda: SimpleNamespace(flash_attn_varlen_func=flash_attn_varlen_func))
    monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda *_: None)
