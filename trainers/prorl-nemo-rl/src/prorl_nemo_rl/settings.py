"""What a user writes under ``rollouts:``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from prorl.client import SampleRules
from prorl.wire.backends import BackendSpec
from prorl.wire.certificate import read_key
from prorl.wire.jobs import Budgets, Seconds
from prorl.wire.rendering import RenderingParams
from prorl.wire.sampling import SamplingParams


class RolloutSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``servers``: the rollout servers' URLs. ``dialect`` of the policy's HTTP engine (``None``: found by asking it);
    ``tokenizer``: the policy's own, a folder or hub name *as the rollout servers see it* (``None``: the model's name).
    ``max_context``: the engine's, where it does not say its own.

    ``domain``, ``settings``, ``rendering``, ``budgets`` and ``sampling_params`` are those of a job; a row's own
    ``domain``, ``settings``, temperature, top_p and max_output_tokens come first.

    ``attempts``: how often a rollout is run that a passing fault keeps from being trained on. ``key_file``: the rollout
    servers' key, where results are signed. ``engine_wait_s``: how long a policy engine may take until it answers.
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
    key_file: str | None = None
    engine_wait_s: Seconds = 600.0

    def rules(self) -> SampleRules:
        """One row of NeMo RL's is one stream: the main agent's."""
        return SampleRules(agents=("",), key=read_key(Path(self.key_file)) if self.key_file else None)

    def backends(self, model: str, base_urls: Sequence[str]) -> list[BackendSpec]:
        """The engines as Gym's config names them: URLs end in ``/v1``, ``model`` is the name or folder that NeMo RL
        loaded. Their weights change in place and nobody is told a version, so the version is one name for all."""
        return [
            BackendSpec(
                url=url.rstrip("/").removesuffix("/v1"),
                dialect=self.dialect,
                model=model,
                tokenizer=self.tokenizer or (model if self.dialect == "nemo-rl" else None),
                max_context=self.max_context,
                policy_version="nemo-rl",
            )
            for url in base_urls
        ]
