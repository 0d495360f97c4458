"""How a rollout samples: the parameters that reach the engine on every turn.

The defaults are those under which an engine's reported logprob is the log-probability of the policy itself
(temperature 1, nothing truncated, nothing penalised), which is what importance ratios in RL assume.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

Positive = Annotated[int, msgspec.Meta(ge=1)]
TokenId = Annotated[int, msgspec.Meta(ge=0)]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sampling of one model reply.

    ``max_tokens`` bounds one reply, not the rollout. ``top_k=0`` means no cut. ``seed`` makes an engine's draws
    repeatable where the engine supports it; each turn uses ``seed + turn``, and further segments seeds of their own.
    """

    temperature: Annotated[float, msgspec.Meta(ge=0.0, le=100.0)] = 1.0
    top_p: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 1.0
    top_k: Annotated[int, msgspec.Meta(ge=0)] = 0
    min_p: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.0
    max_tokens: Positive = 1024
    stop_token_ids: tuple[TokenId, ...] = ()
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**62)] | None = None
