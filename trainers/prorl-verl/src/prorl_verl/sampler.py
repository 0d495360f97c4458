"""A replay buffer that stops early: what a step no longer needs is cancelled at the rollout servers.

::

    trainer.v1.sampler.custom_sampler.path=pkg://prorl_verl.sampler
    trainer.v1.sampler.custom_sampler.name=RolloutServiceReplayBuffer
    +trainer.v1.sampler.sampler_kwargs.urls=[http://127.0.0.1:8089]
    +trainer.v1.sampler.sampler_kwargs.filter_groups_metric=reward

verl's own synchronous buffer waits for every rollout under way once it has enough groups, and its asynchronous one lets
rollouts run that are too old to be used. Here the former are cancelled as soon as the last group is in, the latter as
soon as they are too old; verl's workers, which wait for them, are free a moment later.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import Any

from omegaconf import OmegaConf
from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync

from prorl.client import BlockingClient, ClientError, ServiceError

log = logging.getLogger("prorl.verl")


class RolloutServiceReplayBuffer(ReplayBufferAsync):  # type: ignore[misc] # verl is not typed
    """``sampler_kwargs``: ``urls`` of the rollout servers; ``filter_groups_metric`` for DAPO's filter (``reward``, or a
    name in ``reward_extra_info``; absent: none), which verl tells only its own buffers; ``poll_interval`` in seconds;
    ``give_up_after``: so many groups evicted in a row, with none that can be used, end the run with an error.
    """

    def __init__(self, *, sampler_kwargs: Any, **given: Any) -> None:
        ours = {**(OmegaConf.to_container(OmegaConf.create(sampler_kwargs or {})) or {})}
        urls = ours.pop("urls", ())
        self._servers = [BlockingClient(url, give_up_s=10.0) for url in ([urls] if isinstance(urls, str) else urls)]
        if not self._servers:
            raise ValueError("trainer.v1.sampler.sampler_kwargs.urls must name the rollout servers")
        self._give_up_after = int(ours.pop("give_up_after", 256))
        self._in_vain = 0
        self._cancelled: set[str] = set()
        given.setdefault("filter_groups_metric", ours.pop("filter_groups_metric", None))
        given.setdefault("poll_interval", float(ours.pop("poll_interval", 0.2)))
        if ours:
            raise ValueError(f"trainer.v1.sampler.sampler_kwargs: unknown {', '.join(map(str, ours))}")
        super().__init__(sampler_kwargs=sampler_kwargs, **given)

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, Any]]:
        """As verl's; in synchronous training nothing runs any more when it returns: the weights change next."""
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        if partition_id != "val" and self.trainer_mode == "sync":
            metrics["training/prorl/stopped_early"] = self._stop_the_rest(partition_id)
        return batch, metrics

    def _terminal_eviction_reasons(
        self, global_steps: int, partition_id: str
    ) -> tuple[set[str], set[str], set[str], Counter[float]]:
        """verl's own reasons, and groups that were cancelled; called at every poll."""
        if partition_id == "val":
            return set(), set(), set(), Counter()
        if self.max_off_policy_threshold is not None and self.max_off_policy_strategy == "drop":
            steps, oldest = self.prompt_global_steps[partition_id], global_steps + 1 - self.max_off_policy_threshold
            running = self.running_keys[partition_id]
            # At every poll: some of a group's rollouts may still have been on their way to a server.
            self._cancel({uid for uid in running if steps.get(uid, global_steps) < oldest})
        # A group without rows, or with some of them cancelled, is no group: verl's filter must not look at it.
        with_rows = {key.split("_")[0] for key in self.partitions[partition_id]}
        finished = self.finished_keys[partition_id]
        ended = (finished - with_rows) | (self._cancelled & (finished | self.failure_keys[partition_id]))
        self.finished_keys[partition_id] -= ended
        self.failure_keys[partition_id] |= ended
        stale, equal, failed, counts = super()._terminal_eviction_reasons(global_steps, partition_id)
        self._cancelled -= ended
        return stale, equal, failed, counts

    def _evict_terminal_groups(
        self, global_steps: int, partition_id: str, eviction_reasons: Any
    ) -> tuple[set[str], int, int, dict[str, Any]]:
        """As verl's. Raises ``RuntimeError`` when group after group is evicted: verl itself would refill for ever."""
        evicted: tuple[set[str], int, int, dict[str, Any]] = super()._evict_terminal_groups(
            global_steps, partition_id, eviction_reasons
        )
        self._in_vain = 0 if self._sampleable_terminal_keys(partition_id, eviction_reasons) else self._in_vain
        self._in_vain += len(evicted[0])
        if self._in_vain >= self._give_up_after:
            stale, equal, failed = (len(uids) for uids in eviction_reasons[:3])
            raise RuntimeError(
                f"the last {self._in_vain} groups were of no use; of the latest, {equal} had equal rewards, {failed} "
                f"failed, {stale} were too old: see the rollout servers' status, or give_up_after in sampler_kwargs"
            )
        return evicted

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
        left = self.finished_keys[partition_id] | self.failure_keys[partition_id]
        self._clear_groups(partition_id, left)
        self._cancelled.clear()
        return len(stopped)

    def _cancel(self, uids: set[str]) -> None:
        self._cancelled |= uids
        for server in self._servers:
            for uid in uids:
                try:
                    server.cancel(group_id=uid)
                except ServiceError:  # it knows nothing of this group
                    continue
                except ClientError as error:
                    log.warning("groups could not be cancelled, and run on: %s", error)
                    break
