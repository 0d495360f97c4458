"""A replay buffer that stops early: what a step no longer needs is cancelled at the rollout servers.

::

    trainer.v1.sampler.custom_sampler.path=pkg://prorl_verl.sampler
    trainer.v1.sampler.custom_sampler.name=RolloutServiceReplayBuffer
    +trainer.v1.sampler.sampler_kwargs.urls=[http://127.0.0.1:8089]
    +trainer.v1.sampler.sampler_kwargs.filter_groups_metric=reward

verl's own synchronous buffer fetches two prompts for each group that it evicts, and waits for every rollout under way
once it has enough groups; its asynchronous one lets rollouts run that are too old to be used. Here the former are
cancelled as soon as the last group is in, the latter as soon as they are too old; verl's workers, which wait for them,
are free a moment later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync

from prorl.client import Fleet
from prorl_verl.options import read

log = logging.getLogger("prorl.verl")
Reasons = tuple[set[str], set[str], set[str], Counter[float]]  # groups to evict: stale, of equal rewards, failed


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``sampler_kwargs``. ``urls``: the rollout servers. ``filter_groups_metric`` for DAPO's filter (``reward``, or a
    name in ``reward_extra_info``; ``None``: none), which verl tells only its own buffers. ``give_up_after``: so many
    groups evicted in a row, with none that can be used, end the run with an error. ``poll_interval``: seconds."""

    urls: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    filter_groups_metric: str | None = None
    give_up_after: Annotated[int, msgspec.Meta(ge=1)] = 256
    poll_interval: Annotated[float, msgspec.Meta(gt=0.0)] = 0.2


class RolloutServiceReplayBuffer(ReplayBufferAsync):  # type: ignore[misc] # verl is not typed
    def __init__(self, *, sampler_kwargs: Any, refill_fn: Callable[[int], Any], **given: Any) -> None:
        self._settings = settings = read(Settings, sampler_kwargs or {}, "trainer.v1.sampler.sampler_kwargs")
        self._fetch = refill_fn
        self._in_vain: set[str] = set()
        super().__init__(
            sampler_kwargs=sampler_kwargs,
            refill_fn=self._refill,
            filter_groups_metric=settings.filter_groups_metric,
            poll_interval=settings.poll_interval,
            **given,
        )

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, Any]]:
        """As verl's; in synchronous training nothing runs any more when it returns: the weights change next."""
        self._batch_size = batch_size
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        if partition_id != "val" and self.trainer_mode == "sync":
            metrics["training/prorl/stopped_early"] = self._stop_the_rest(partition_id)
        return batch, metrics

    def _terminal_eviction_reasons(self, global_steps: int, partition_id: str) -> Reasons:
        """verl's own reasons, and groups that were cancelled; called at every poll. Raises ``RuntimeError`` when group
        after group is of no use: verl itself would refill for ever."""
        if partition_id == "val":
            return set(), set(), set(), Counter()
        finished, running = self.finished_keys[partition_id], self.running_keys[partition_id]
        if self.max_off_policy_threshold is not None and self.max_off_policy_strategy == "drop":
            steps, oldest = self.prompt_global_steps[partition_id], global_steps + 1 - self.max_off_policy_threshold
            # At every poll: some of a group's rollouts may still have been on their way to a server.
            self._cancel({uid for uid in running if steps.get(uid, global_steps) < oldest})
        # A group that was cancelled has no rows: it has failed, and verl's filter must not look at it.
        cancelled = finished - {key.split("_")[0] for key in self.partitions[partition_id]}
        finished -= cancelled
        self.failure_keys[partition_id] |= cancelled
        reasons: Reasons = super()._terminal_eviction_reasons(global_steps, partition_id)
        if self._sampleable_terminal_keys(partition_id, reasons):
            self._in_vain.clear()
        self._in_vain.update(*reasons[:3])
        if len(self._in_vain) >= self._settings.give_up_after:
            stale, equal, failed = map(len, reasons[:3])
            raise RuntimeError(
                f"the last {len(self._in_vain)} groups were of no use; of the latest, {equal} had equal rewards, "
                f"{failed} failed, {stale} were too old: see the rollout servers' status, or give_up_after in "
                "sampler_kwargs"
            )
        return reasons

    def _refill(self, evicted: int) -> None:
        """In synchronous training with a prompt more for each that is replaced, as long as no more than a batch runs at
        once: those that are slow, or of no use either, are then not waited for."""
        running = len(self.pending_keys["train"]) + len(self.running_keys["train"])
        room = self._batch_size - running if self.trainer_mode == "sync" else 0
        self._fetch(max(evicted, min(2 * evicted, room)))

    def _stop_the_rest(self, partition_id: str) -> int:
        """Cancel what runs, wait until verl's workers have let go of it, and drop it. Returns how many groups."""
        stopped: set[str] = set()
        while True:
            self._sync_metadata_from_transfer_queue()
            running = self.pending_keys[partition_id] | self.running_keys[partition_id]
            if not running:
                break
            stopped |= running
            self._cancel(running)  # again at every turn: some were still on their way to a server
            time.sleep(self.poll_interval)
        self._clear_groups(partition_id, self.finished_keys[partition_id] | self.failure_keys[partition_id])
        return len(stopped)

    def _cancel(self, uids: set[str]) -> None:
        async def cancel() -> list[Any]:
            async with Fleet(self._settings.urls) as fleet:
                return await asyncio.gather(*(fleet.cancel(group_id=uid) for uid in uids), return_exceptions=True)

        for reply in asyncio.run(cancel()) if uids else ():
            if isinstance(reply, BaseException):
                log.warning("a group could not be cancelled, and runs on: %s", reply)
