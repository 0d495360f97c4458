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

from prorl.client import (
    ClientError,
    CollectorSettings,
    Group,
    GroupCollector,
    Prompt,
    SampleRules,
    Untrainable,
    samples_of,
)
from prorl.wire import JobRequest
from prorl_trl.servers import connect

MANY = 256  # rollouts that fail one after the other: it is not their prompts that are broken


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
    the weights. ``attempts``: how often a sample is tried. ``in_flight``: rollouts at once.

    Calling it raises :class:`NoRollouts`, :class:`prorl.client.Stalled`, or what ``publish`` raises.
    """

    servers: str | Sequence[str]
    request_of: Callable[[Any], JobRequest]
    _: KW_ONLY
    publish: Callable[[Any, str], None] | None = None
    rules: SampleRules | None = None
    attempts: int = 2
    in_flight: int = 256
    published: str | None = field(default=None, init=False)

    @classmethod
    def from_dataset(
        cls, servers: str | Sequence[str], dataset: Any, request: JobRequest, *, instance: str = "instance", **more: Any
    ) -> RolloutServiceFunc:
        """``request`` for every row, with the row's column ``instance`` as its instance. Raises ``ValueError`` where
        two rows have the same prompt and different instances: nobody could tell them apart."""
        known: dict[bytes, Any] = {}
        for row in dataset:
            if known.setdefault(_key(row["prompt"]), row[instance]) != row[instance]:
                raise ValueError(f"two rows with the prompt {row['prompt']!r} have different instances")
        return cls(servers, lambda prompt: replace(request, instance=known[_key(prompt)]), **more)

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        step = int(trainer.state.global_step)
        version = f"step-{step}"
        if self.publish is not None and self.published != version:
            self.publish(trainer, version)
            self.published = version
        groups = asyncio.run(self._collect(prompts, step))
        rows = [self._row(group, version, trainer.processing_class) for group in groups]
        if all(row.rollout_trouble for row in rows):
            raise NoRollouts(Counter(row.rollout_trouble for row in rows))
        return {name: [getattr(row, name) for row in rows] for name in Row.__struct_fields__}

    async def _collect(self, prompts: list[Any], step: int) -> list[Group]:
        """A group of one for each prompt: TRL has made the groups, of as many as it wants here."""
        asked = [(group, prompt) for group, (prompt, run) in enumerate(itertools.groupby(prompts)) for _ in run]
        todo = [
            Prompt(prompt_id=f"{place}", request=replace(self.request_of(prompt), group_id=f"step-{step}.{group}"))
            for place, (group, prompt) in enumerate(asked)
        ]
        settings = CollectorSettings(
            samples=1, wanted=len(todo), in_flight=self.in_flight, attempts=self.attempts, max_lag=0, give_up_after=MANY
        )
        async with (
            connect(self.servers, concurrency=self.in_flight) as rollouts,
            GroupCollector(rollouts, todo, settings, informative=lambda _: True) as collector,
        ):
            batch = await collector.collect(step)
        return sorted([*batch.groups, *batch.incomplete], key=lambda group: int(group.prompt.prompt_id))

    def _row(self, group: Group, version: str, tokenizer: Any) -> Row:
        attempt = group.kept[0] if group.kept else group.failed[-1][1]
        trouble = attempt.trouble
        if attempt.result is not None and not trouble:
            try:
                sample, *others = samples_of(attempt.result, self.rules)
            except Untrainable as error:
                trouble = error.reason
            else:
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
                        job_id=sample.job_id,
                    )
        prompt, said = [tokenizer.pad_token_id], [tokenizer.eos_token_id]  # TRL takes no empty ones
        nothing = Row(prompt_ids=prompt, completion_ids=said, logprobs=[0.0], env_mask=[0], job_id=attempt.job_id)
        return replace(nothing, rollout_trouble=trouble)


def service_reward(
    *, rollout_reward: list[float | None], rollout_trouble: list[str], log_metric: Any = None, **_: Any
) -> list[float | None]:
    """The reward function that goes with it: the service's own verdicts. Logs the share of untrainable rollouts."""
    if log_metric is not None:
        log_metric("rollouts/untrainable", sum(map(bool, rollout_trouble)) / len(rollout_trouble))
    return rollout_reward


def _key(prompt: Any) -> bytes:
    return msgspec.json.encode(prompt, order="sorted")
