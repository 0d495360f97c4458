"""What a user writes under ``rollouts:``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from prorl.wire.backends import BackendSpec
from prorl.wire.jobs import Budgets, Seconds
from prorl.wire.rendering import RenderingParams
from prorl.wire.sampling import SamplingParams


class RolloutSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``servers``: the rollout servers' URLs. ``dialect`` of the policy's HTTP engine (``None``: found by asking it);
    ``tokenizer``: the policy's own, a folder or hub name *as the rollout servers see it* (``None``: the model's name).
    ``max_context``: the engine's, where it does not say its own.

    ``domain``, ``settings``, ``rendering``, ``budgets`` and ``sampling_params`` are those of a job; a row's own
    ``domain``, ``settings``, temperature, top_p and max_output_tokens come first.

    ``attempts``: how often a rollout is run whose sample is masked through no fault of the policy. ``masked``: what
    becomes of one that still is: ``flag`` it with ``instance_config.mask_sample`` (NeMo RL after 0.7 then leaves it
    out of the loss), or ``refuse`` it with a 503. ``key_file``: the rollout servers' key, where results are signed.
    ``engine_wait_s``: how long a policy engine may take until it answers. ``grace_s``: how long a rollout is kept
    whose caller went away, for one that comes back with the same row.
    """

    servers: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    dialect: str | None = "nemo-rl"
    tokenizer: str | None = None
    max_context: Annotated[int, msgspec.Meta(ge=1)] | None = None
    domain: str | None = None
    settings: dict[str, Any] = {}
    rendering: RenderingParams = RenderingParams()
    budgets: Budgets = Budgets()
    sampling_params: SamplingParams = SamplingParams()
    attempts: Annotated[int, msgspec.Meta(ge=1, le=100)] = 2
    masked: Literal["flag", "refuse"] = "flag"
    key_file: str | None = None
    engine_wait_s: Seconds = 600.0
    grace_s: Seconds = 10.0


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The engines as Gym's config names them: ``base_urls`` end in ``/v1``, ``model`` is the name or folder that NeMo
    RL loaded. Their weights change in place and nobody is told a version, so the version is one name for all."""

    base_urls: Sequence[str]
    model: str

    def backends(self, settings: RolloutSettings) -> list[BackendSpec]:
        ours = settings.dialect == "nemo-rl"
        return [
            BackendSpec(
                url=url.rstrip("/").removesuffix("/v1"),
                dialect=settings.dialect,
                model=self.model,
                tokenizer=settings.tokenizer or (self.model if ours else None),
                max_context=settings.max_context,
                policy_version="nemo-rl",
            )
            for url in self.base_urls
        ]
