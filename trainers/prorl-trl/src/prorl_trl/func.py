"""``GRPOTrainer(rollout_func=RolloutServiceFunc(...), reward_funcs=service_reward)``.

TRL hands over the prompts of a step, each repeated for its generations, and takes exactly as many rollouts back, in
that order. A rollout that cannot be trained on (a fault of sandbox, grader or engine; never a low reward) is tried
again as a new one; if that fails too, its place is taken by a row that teaches nothing: ``env_mask`` 0, and a reward of
``None``, which TRL leaves out of the group's baseline. It is never replaced by a copy of another.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from prorl.client import ClientError, Fleet, SampleRules, Tried, try_for_samples
from prorl.wire import JobRequest


class NoRollouts(ClientError):  # noqa: N818 - says what happened
    """Not one rollout of a step can be trained on. ``troubles`` counts why."""

    def __init__(self, troubles: Counter[str]) -> None:
        said = ", ".join(f"{kind} ({count})" for kind, count in troubles.most_common(5))
        super().__init__(f"no rollout of this step can be trained on: {said}")
        self.troubles = troubles


class Row(msgspec.Struct, kw_only=True):
    """One rollout as TRL takes it. ``rollout_trouble`` says why it must not be trained on; then it has no reward."""

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    env_mask: list[int]
    rollout_reward: float | None = None
    rollout_trouble: str = ""
    job_id: str


@dataclass(eq=False)
class RolloutServiceFunc:
    """``servers``: one URL or several. ``request_of`` makes the job of an entry of the data set's ``prompt`` column,
    which is all that TRL passes on (see :meth:`from_dataset`).

    ``publish(trainer, policy_version)`` puts the trainer's weights into the engines, once per optimizer step; then
    every sampled token must carry that version, or the rollout counts as untrainable. Without it somebody else moves
    the weights. ``attempts``: how often a rollout is tried that a passing fault keeps from being trained on.

    Calling it raises :class:`NoRollouts`, :class:`prorl.client.ClientError` when the service refuses a job or is not
    there, or what ``publish`` raises.
    """

    servers: str | Sequence[str]
    request_of: Callable[[Any], JobRequest]
    _: KW_ONLY
    publish: Callable[[Any, str], None] | None = None
    rules: SampleRules | None = None
    attempts: int = 2
    published: str | None = field(default=None, init=False)

    @classmethod
    def from_dataset(
        cls, servers: str | Sequence[str], dataset: Any, request: JobRequest, *, instance: str = "instance", **more: Any
    ) -> RolloutServiceFunc:
        """``request`` for every row, with the row's column ``instance`` as its instance. Raises ``ValueError`` where
        two rows have the same prompt and different instances: nobody could tell them apart. A prompt of no row (an
        evaluation's, say) raises ``KeyError`` when it is to be rolled out."""
        known: dict[bytes, Any] = {}
        for row in dataset:
            if known.setdefault(_key(row["prompt"]), row[instance]) != row[instance]:
                raise ValueError(f"two rows with the prompt {row['prompt']!r} have different instances")

        def request_of(prompt: Any) -> JobRequest:
            if (key := _key(prompt)) not in known:
                raise KeyError(f"no row has the prompt {prompt!r}: from_dataset needs the rows of evaluations as well")
            return replace(request, instance=known[key])

        return cls(servers, request_of, **more)

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        step = int(trainer.state.global_step)
        version = f"step-{step}"
        if self.publish is not None and self.published != version:
            self.publish(trainer, version)
            self.published = version
        rows = [self._row(tried, version, trainer.processing_class) for tried in asyncio.run(self._try(prompts, step))]
        if all(row.rollout_trouble for row in rows):
            raise NoRollouts(Counter(row.rollout_trouble for row in rows))
        return {name: [getattr(row, name) for row in rows] for name in Row.__struct_fields__}

    async def _try(self, prompts: list[Any], step: int) -> list[Tried]:
        """A rollout for each prompt; equal ones in a row are a group of TRL's."""
        requests = [
            replace(self.request_of(prompt), group_id=f"step-{step}.{number}", cancel_on_disconnect=True)
            for number, (prompt, run) in enumerate(itertools.groupby(prompts))
            for _ in run
        ]
        async with Fleet(self.servers) as fleet:
            tries = (try_for_samples(fleet, each, attempts=self.attempts, rules=self.rules) for each in requests)
            return await asyncio.gather(*tries)

    def _row(self, tried: Tried, version: str, tokenizer: Any) -> Row:
        job_id, trouble = tried.result.job_id, tried.trouble
        if not trouble:
            sample, *others = tried.samples
            if others:  # TRL has one row for each; RolloutServiceWorker takes them all
                trouble = "several_segments"
            elif self.publish and set(itertools.compress(sample.versions, sample.mask)) != {version}:
                trouble = "other_version"
            else:
                return Row(
                    prompt_ids=sample.prompt_ids,
                    completion_ids=sample.response_ids,
                    logprobs=sample.logprobs,
                    env_mask=sample.mask,
                    rollout_reward=sample.reward,
                    job_id=job_id,
                )
        prompt, said = [tokenizer.pad_token_id], [tokenizer.eos_token_id]  # TRL takes no empty ones
        return Row(
            prompt_ids=prompt, completion_ids=said, logprobs=[0.0], env_mask=[0], rollout_trouble=trouble, job_id=job_id
        )


def service_reward(
    *, rollout_reward: list[float | None], rollout_trouble: list[str], log_metric: Any = None, **_: Any
) -> list[float | None]:
    """The reward function that goes with it: the service's own verdicts. Logs the share of untrainable rollouts."""
    if log_metric is not None:
        log_metric("rollouts/untrainable", sum(map(bool, rollout_trouble)) / len(rollout_trouble))
    return rollout_reward


def _key(prompt: Any) -> bytes:
    return msgspec.json.encode(prompt, order="sorted")
