"""The paper's asynchronous DAPO: keep the rollout servers full, and stop as soon as enough groups teach something.

::

    prompts ──> groups of n samples ──> rollouts in flight (never fewer than allowed, while there is work)
                   ^      │ ended
                   │      ├─ rewards differ ──> informative ──> a batch once there are K
                   │      ├─ all equal ───────> dropped, counted
                   │      └─ too few left ────> incomplete, with what went wrong
                   └─ a failed sample is tried again, as a new rollout; it is never replaced by a copy

With the K-th informative group the batch is ready. What still runs is cancelled, or carried over into the next batch
and kept going while the trainer trains. Finished siblings stay with their group either way, as long as ``max_lag``
steps allow.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from typing import Protocol, Self

import msgspec

from prorl.client.errors import ClientError, ServiceError
from prorl.client.groups import Attempt, Informative, Prompt, rewards_differ
from prorl.client.roster import Batch, CollectorSettings, Place, Roster
from prorl.wire.jobs import JobRequest
from prorl.wire.results import RolloutResult
from prorl.wire.service import CancelReply

log = logging.getLogger("prorl.client")


class Rollouts(Protocol):
    """What a collector needs of :class:`~prorl.client.RolloutClient` or :class:`~prorl.client.Fleet`."""

    async def process(self, request: JobRequest) -> RolloutResult: ...

    async def cancel(self, *, job_ids: tuple[str, ...]) -> CancelReply: ...


class GroupCollector:
    """For one trainer and one event loop. :meth:`collect` once per step, :meth:`close` at the end. ``prompts`` is read
    as far as it is needed, in the event loop: it must not wait for anything. What it raises, ``collect`` raises."""

    def __init__(
        self,
        rollouts: Rollouts,
        prompts: Iterable[Prompt],
        settings: CollectorSettings,
        *,
        informative: Informative = rewards_differ,
        run_id: str | None = None,
    ) -> None:
        self._rollouts = rollouts
        self._settings = settings
        self._roster = Roster(prompts, settings, informative=informative, run_id=run_id)
        self._running: dict[str, tuple[Place, asyncio.Task[Attempt]]] = {}
        self._ended: asyncio.Queue[str] = asyncio.Queue()
        self._between: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel what runs, at the service as well."""
        await self._stop_between()
        await self._cancel(list(self._running))

    async def collect(self, step: int) -> Batch:
        """The next batch, for the trainer's step ``step`` (which must not fall).

        Returns when K informative groups are there, when the prompts are used up, or after ``max_groups``: it never
        waits for what cannot come. Raises :class:`~prorl.client.roster.Stalled`.
        """
        if step < self._roster.step:
            raise ValueError(f"step {step} after step {self._roster.step}")
        await self._stop_between()
        try:
            self._roster.begin(step)
            late = [job for job, (place, _) in self._running.items() if place.step < self._roster.oldest_allowed]
            await self._cancel(late)
            await self._pump(self._settings.wanted)
            if not self._settings.carry:
                await self._cancel(list(self._running))
        except BaseException:
            await self._cancel(list(self._running))
            raise
        batch = self._roster.take(carried=len(self._running))
        if self._running:
            ahead = self._settings.wanted * max(1, self._settings.max_lag)
            self._between = asyncio.create_task(self._pump(ahead), name="rollouts between two batches")
        return batch

    async def stream(self, first_step: int = 0) -> AsyncIterator[Batch]:
        """Batches of consecutive steps until the prompts are used up; the last one may be short."""
        step = first_step
        while True:
            yield await self.collect(step)
            if self._roster.over:
                return
            step += 1

    async def _pump(self, wanted: int) -> None:
        """Keep rollouts in flight until ``wanted`` groups are ready, or none can become so."""
        self._fill(wanted)
        while len(self._roster.ready) < wanted and self._running and not self._roster.spent:
            self._settle(await self._ended.get())
            self._fill(wanted)

    def _fill(self, wanted: int) -> None:
        """As many rollouts in flight as allowed."""
        while len(self._running) < self._settings.in_flight and len(self._roster.ready) < wanted:
            if (place := self._roster.next_place()) is None:
                return
            task = asyncio.create_task(self._attempt(place), name=place.job_id)
            task.add_done_callback(lambda task: self._ended.put_nowait(task.get_name()))
            self._running[place.job_id] = place, task

    async def _attempt(self, place: Place) -> Attempt:
        job_id, step = place.job_id, place.step
        asked = place.group.prompt.request  # one that names its group keeps it: the trainer may group more widely
        group_id = asked.group_id or place.group.group_id
        request = msgspec.structs.replace(asked, job_id=job_id, group_id=group_id)
        try:
            async with asyncio.timeout(self._settings.rollout_s):
                result = await self._rollouts.process(request)
        except ClientError as error:
            return Attempt(job_id=job_id, step=step, error=error)
        except TimeoutError:
            await self._tell_service([job_id])
            lost = ClientError(f"{job_id}: no result after {self._settings.rollout_s:g} s")
            return Attempt(job_id=job_id, step=step, error=lost)
        return Attempt(job_id=job_id, step=step, result=result)

    def _settle(self, job_id: str) -> None:
        """Book a finished attempt. Raises what a rollout raised that no client should."""
        place, task = self._running.pop(job_id, (None, None))
        if place is not None and task is not None:  # else it was cancelled meanwhile
            self._roster.book(place, task.result())

    async def _cancel(self, job_ids: list[str]) -> None:
        """Cancel at the service, and wait for how each of them ended: one that was through keeps its result, the
        others are rolled out again with their group."""
        if not job_ids:
            return
        chosen = [self._running[job_id] for job_id in job_ids]
        heard = await self._tell_service(job_ids)
        # What the service does not know yet may be on its way there: given up here first, then cancelled once more.
        unheard = {task for _, task in chosen if task.get_name() not in (heard or ())}
        for task in unheard:
            task.cancel()
        _, late = await asyncio.wait([task for _, task in chosen], timeout=self._settings.cancel_s)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)
        if heard is not None and unheard:
            await self._tell_service([task.get_name() for task in unheard])
        for place, task in reversed(chosen):  # only now: were this call cancelled, they would still be ours
            del self._running[place.job_id]
            ended = not task.cancelled() and task.exception() is None
            if ended and task.result().trainable:
                self._roster.book(place, task.result())
            else:
                self._roster.put_back(place)

    async def _tell_service(self, job_ids: list[str]) -> set[str] | None:
        """Returns those of the ids that the service knew, or ``None`` when it did not answer."""
        try:
            async with asyncio.timeout(self._settings.cancel_s):
                reply = await self._rollouts.cancel(job_ids=tuple(job_ids))
        except (ClientError, TimeoutError) as error:
            if isinstance(error, ServiceError) and error.status == 404:  # it knows none of them
                return set()
            log.warning("%d rollouts could not be cancelled: %s", len(job_ids), str(error) or type(error).__name__)
            return None  # they end by their own budgets then
        return set(job_ids).difference(reply.unknown)

    async def _stop_between(self) -> None:
        """End the pumping between two batches. Raises what it ended with by itself."""
        if self._between is not None:
            task, self._between = self._between, None
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()
