"""``GRPOTrainer(rollout_func=RolloutServiceFunc(...), reward_funcs=service_reward)``.

TRL hands over the prompts of a step, each repeated for its generations, and takes exactly as many rollouts back, in
that order. A rollout that cannot be trained on (a fault of sandbox, grader or engine; never a low reward) is tried
again as a new one; if that fails too, its place is taken by a row that teaches nothing: ``env_mask`` 0, and a reward of
``None``, which TRL leaves out of the group's baseline. It is never replaced by a copy of another.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

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

Publish = Callable[[Any, str], None]


class NoRollouts(ClientError):  # noqa: N818 - says what happened
    """Not one rollout of a step can be trained on. ``troubles`` counts why."""

    def __init__(self, troubles: Counter[str]) -> None:
        said = ", ".join(f"{kind} ({count})" for kind, count in troubles.most_common(5))
        super().__init__(f"no rollout of this step can be trained on: {said}")
        self.troubles = troubles


class Row(msgspec.Struct, kw_only=True):
    """One rollout as TRL takes it. ``reward`` is ``None`` and ``trouble`` says why where it must not be trained on."""

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    env_mask: list[int]
    rollout_reward: float | None
    rollout_trouble: str = ""
    job_id: str = ""


class RolloutServiceFunc:
    """``servers``: one URL or several. ``request_of`` makes the job of an entry of the data set's ``prompt`` column,
    which is all that TRL passes on (see :meth:`from_dataset`).

    ``publish(trainer, policy_version)`` puts the trainer's weights into the engines, once per optimizer step; then
    every sampled token must carry that version, or the rollout counts as untrainable. Without it somebody else moves
    the weights. ``attempts``: how often a sample is tried. ``in_flight``: rollouts at once.

    Calling it raises :class:`NoRollouts`, :class:`prorl.client.Stalled`, or what ``publish`` raises.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        request_of: Callable[[Any], JobRequest],
        *,
        publish: Publish | None = None,
        rules: SampleRules | None = None,
        attempts: int = 2,
        in_flight: int = 256,
    ) -> None:
        self._servers = servers
        self._request_of = request_of
        self._publish = publish
        self._published: str | None = None
        self._rules = rules
        self._attempts = attempts
        self._in_flight = in_flight

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

        def request_of(prompt: Any) -> JobRequest:
            return msgspec.structs.replace(request, instance=known[_key(prompt)])

        return cls(servers, request_of, **more)

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        step = int(trainer.state.global_step)
        version = f"step-{step}"
        if self._publish is not None and self._published != version:
            self._publish(trainer, version)
            self._published = version
        runs = [(prompt, len(list(same))) for prompt, same in itertools.groupby(prompts)]
        groups = asyncio.run(self._collect(runs, step))
        expected = version if self._publish is not None else None
        tokenizer = trainer.processing_class
        blank = Row(
            prompt_ids=[tokenizer.pad_token_id],
            completion_ids=[tokenizer.eos_token_id],
            logprobs=[0.0],
            env_mask=[0],
            rollout_reward=None,
        )
        rows = [
            self._row(groups[index], sample, expected, blank)
            for index, (_, count) in enumerate(runs)
            for sample in range(count)
        ]
        if all(row.rollout_trouble for row in rows):
            raise NoRollouts(Counter(row.rollout_trouble for row in rows))
        return {name: [getattr(row, name) for row in rows] for name in Row.__struct_fields__}

    async def _collect(self, runs: list[tuple[Any, int]], step: int) -> dict[int, Group]:
        """The groups by the index of their run. Runs of one length are one batch."""
        by_length: dict[int, list[Prompt]] = defaultdict(list)
        for index, (prompt, count) in enumerate(runs):
            by_length[count].append(Prompt(prompt_id=str(index), request=self._request_of(prompt)))
        async with connect(self._servers, concurrency=self._in_flight) as rollouts:

            async def collect(count: int, todo: list[Prompt]) -> list[Group]:
                settings = CollectorSettings(
                    samples=count,
                    wanted=len(todo),
                    in_flight=min(self._in_flight, count * len(todo)),
                    attempts=self._attempts,
                    min_samples=1,
                    max_lag=0,
                )
                # TRL has chosen the prompts: a group whose rewards are all equal has to be handed back as well.
                async with GroupCollector(rollouts, todo, settings, informative=lambda _: True) as collector:
                    batch = await collector.collect(step)
                return [*batch.groups, *batch.incomplete]

            found = await asyncio.gather(*(collect(count, todo) for count, todo in by_length.items()))
        return {int(group.prompt.prompt_id): group for groups in found for group in groups}

    def _row(self, group: Group, sample: int, version: str | None, blank: Row) -> Row:
        attempt = group.kept.get(sample)
        if attempt is None or attempt.result is None:
            last = [failed for index, failed in group.failed if index == sample][-1]
            return msgspec.structs.replace(blank, rollout_trouble=last.trouble, job_id=last.job_id)
        result = attempt.result
        try:
            segments = samples_of(result, self._rules)
        except Untrainable as error:
            return msgspec.structs.replace(blank, rollout_trouble=error.reason, job_id=result.job_id)
        if len(segments) > 1:  # TRL has one row for each; RolloutServiceWorker takes them all
            return msgspec.structs.replace(blank, rollout_trouble="several_segments", job_id=result.job_id)
        (one,) = segments
        if version is not None and any(v != version for v, bit in zip(one.versions, one.mask, strict=True) if bit):
            return msgspec.structs.replace(blank, rollout_trouble="other_version", job_id=result.job_id)
        return Row(
            prompt_ids=one.prompt_ids,
            completion_ids=one.response_ids,
            logprobs=one.logprobs,
            env_mask=one.mask,
            rollout_reward=one.reward,
            job_id=one.job_id,
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
