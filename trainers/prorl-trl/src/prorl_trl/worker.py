"""``AsyncGRPOTrainer(rollout_worker=RolloutServiceWorker(...), weight_transfer=...)``: rollouts never wait for a step.

::

    trainer thread                      worker thread
    update_model_version(v) ─────────>  GroupCollector: rollouts in flight, groups that teach something,
    rollout_buffer.get() <───────────   none older than max_staleness
    metrics_queue, check_health <────   rewards of everything; how it fails

Where the weights change under a rollout its later tokens are the new policy's. Each token keeps its own log-probability
and version; the sample counts as old as its oldest token.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import queue
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from prorl.client import (
    Batch,
    CollectorSettings,
    Fleet,
    Group,
    GroupCollector,
    Prompt,
    Sample,
    SampleRules,
    Untrainable,
    rewards_differ,
    samples_of,
)
from prorl.wire import RolloutResult

log = logging.getLogger("prorl.trl")
LOOK_S = 0.05  # how often the worker's thread looks whether it is to stop, and whether a full buffer has room


class RolloutServiceWorker:
    """``prompts`` is what is rolled out, in order; ``samples`` of each. At most ``in_flight`` rollouts run at once, and
    at most ``buffer`` samples wait for the trainer. ``max_staleness`` should be that of ``AsyncGRPOConfig``: older
    rollouts are cancelled at the service rather than dropped by the trainer.

    ``informative`` says which groups are handed over (default: DAPO's filter); ``scale``: divide advantages by the
    group's deviation, or do not. ``version_of`` reads TRL's number from a policy version's name
    (:class:`~prorl_trl.FolderWeights` names them so). A rollout of several segments gives a sample each, with one
    advantage, as TRL does with conversations that fork. ``more`` is ``attempts``, ``min_samples`` and whatever else
    :class:`prorl.client.CollectorSettings` has.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        prompts: Iterable[Prompt],
        *,
        samples: int,
        in_flight: int,
        max_staleness: int = 4,
        buffer: int = 1024,
        informative: Callable[[Group], bool] = rewards_differ,
        scale: Literal["std", "none"] = "std",
        rules: SampleRules | None = None,
        version_of: Callable[[str], int] = int,
        **more: Any,
    ) -> None:
        self.rollout_buffer: queue.Queue[Any] = queue.Queue(buffer)
        self.metrics_queue: queue.Queue[dict[str, float | tuple[float, float]]] = queue.Queue()
        self._servers = servers
        self._prompts = prompts
        self._settings = CollectorSettings(  # wanted=1: a group goes to the trainer as soon as it is there
            samples=samples, wanted=1, in_flight=in_flight, carry=True, max_lag=max_staleness, **more
        )
        self._informative = informative
        self._scale = scale
        self._rules = rules
        self._version_of = version_of
        self._version = 0
        self._groups = 0
        self._beat = time.monotonic()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._over: BaseException | None = None

    # -- what TRL calls, from the trainer's thread

    def start(self) -> None:
        if self._thread is None:
            self._beat = time.monotonic()
            self._thread = threading.Thread(target=self._run, name="prorl rollouts", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Cancel what runs, at the service as well."""
        if self._thread is not None:
            self._stopping = True
            self._thread.join()

    def update_model_version(self, model_version: int) -> None:
        self._version = model_version

    def check_health(self, stale_after_s: float) -> None:
        """Raises ``RuntimeError`` when no sample can come any more, with the reason as its cause."""
        if self._over is not None and self.rollout_buffer.empty():
            raise RuntimeError(f"the rollouts have ended: {self._over}") from self._over
        silent_s = time.monotonic() - self._beat
        if self._over is None and silent_s > stale_after_s:
            raise RuntimeError(f"the rollouts' thread has not moved for {silent_s:.0f} s")

    # -- the worker's thread

    def _run(self) -> None:
        try:
            self._over = RuntimeError(asyncio.run(self._main()))
        except asyncio.CancelledError:
            self._over = RuntimeError("the worker was stopped")
        except BaseException as error:  # told by check_health, in the trainer's thread
            log.exception("the rollouts have ended")
            self._over = error

    async def _main(self) -> str:
        """Why there are no more rollouts."""
        work = asyncio.create_task(self._roll_out())
        while not (work.done() or self._stopping):
            self._beat = time.monotonic()
            await asyncio.wait({work}, timeout=LOOK_S)
        work.cancel()  # nothing happens to one that is done
        return await work

    async def _roll_out(self) -> str:
        async with (
            Fleet(self._servers) as fleet,
            GroupCollector(fleet, self._prompts, self._settings, informative=self._judge) as collector,
        ):
            while True:
                batch = await collector.collect(self._version)
                self._tell(batch)
                for group in batch.groups:
                    await self._hand_over(group)
                if not batch.complete:
                    return batch.why

    def _judge(self, group: Group) -> bool:
        """Every group that has ended comes by here: its rewards are told before the filter sees it."""
        rewards, informative = group.rewards, self._informative(group)
        self.metrics_queue.put(
            {"rollout/reward": (sum(rewards), len(rewards)), "rollout/informative": (float(informative), 1.0)}
        )
        return informative

    def _tell(self, batch: Batch) -> None:
        failed = sum(batch.troubles.values())
        if batch.finished:
            self.metrics_queue.put({"rollout/failed": (float(failed), float(batch.finished))})
        self.metrics_queue.put({"rollout/stale_total": float(batch.stale), "rollout/cancelled_total": batch.cancelled})
        if failed:
            log.warning("%d of %d rollouts failed: %s", failed, batch.finished, dict(batch.troubles))

    async def _hand_over(self, group: Group) -> None:
        mean, deviation = statistics.fmean(group.rewards), statistics.pstdev(group.rewards)
        self._groups += 1
        for result in group.results:
            advantage = (result.reward - mean) / (deviation + 1e-8 if self._scale == "std" else 1.0)
            try:
                samples = samples_of(result, self._rules)
            except Untrainable as error:
                log.warning("not trained on: %s", error)
                self.metrics_queue.put({f"rollout/untrainable_{error.reason}_total": 1.0})
                continue
            for sample in samples:
                while self.rollout_buffer.full():  # noqa: ASYNC110 - the trainer is behind, and its queue has no event
                    await asyncio.sleep(LOOK_S)
                self.rollout_buffer.put_nowait(self._row(sample, result, advantage, deviation))

    def _row(self, sample: Sample, result: RolloutResult, advantage: float, deviation: float) -> Any:
        import numpy as np  # noqa: PLC0415 - the trainer's, as is the next
        from trl.experimental.async_grpo.async_rollout_worker import RolloutSample  # noqa: PLC0415

        prompt, *turns = [turn for turn in result.trajectory.turns if turn.segment == sample.segment]
        before = [0] * len(sample.prompt_ids)
        return RolloutSample(
            prompt=[{"role": "user", "content": prompt.text}],
            completion=[{"role": turn.role, "content": turn.text} for turn in turns],
            input_ids=np.asarray(sample.prompt_ids + sample.response_ids, dtype=np.int64),
            completion_mask=np.asarray(before + sample.mask, dtype=np.int64),
            old_log_probs=np.asarray(before + sample.logprobs, dtype=np.float32),
            advantage=advantage,
            model_version=min(map(self._version_of, itertools.compress(sample.versions, sample.mask))),
            group_id=self._groups,
            metrics={"reward": sample.reward, "reward_std": deviation},
            enqueued_at=time.time(),
        )
