"""The rollout servers as this trainer uses them: the policy's engines registered, rows in, results out.

Gym sends a row again when its connection broke, without saying that it did so before. So a rollout whose caller went
away is kept for a moment: the same row within that time gets it, otherwise it is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from prorl.client import ClientError, Fleet, SampleRules, ServiceError
from prorl.wire.backends import BackendSpec
from prorl.wire.certificate import read_key
from prorl.wire.jobs import JobRequest
from prorl.wire.results import RolloutResult
from prorl_nemo_rl.rows import digest, job_of
from prorl_nemo_rl.settings import Policy, RolloutSettings

log = logging.getLogger("prorl.nemo_rl")
_RETRY_S = 2.0
_REFUSED = 500  # below: the registration itself is wrong, and asking again will not help


class Flight:
    """A rollout under way for one caller at a time."""

    def __init__(self, key: str, task: asyncio.Task[RolloutResult]) -> None:
        self.key = key
        self.task = task
        self.expiry: asyncio.TimerHandle | None = None


class Rollouts:
    """Use as ``async with``: leaving cancels what is under way. ``run`` is one rollout to its end; ``board`` and
    ``leave`` are the same in two steps, for callers that may go away and come back."""

    def __init__(self, settings: RolloutSettings, policy: Policy) -> None:
        self.settings = settings
        self.rules = SampleRules(key=read_key(Path(settings.key_file)) if settings.key_file else None)
        self._backends = policy.backends(settings)
        self._fleet = Fleet(settings.servers)
        self._run_id = uuid.uuid4().hex[:8]
        self._count = itertools.count(1)
        self._flights: set[Flight] = set()
        self._left: dict[str, Flight] = {}

    async def __aenter__(self) -> Self:
        await self._fleet.__aenter__()
        self._registered = asyncio.create_task(self._register(), name="register the policy's engines")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [self._registered, *(flight.task for flight in self._flights)]
        for flight in self._left.values():
            if flight.expiry is not None:
                flight.expiry.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._fleet.close()

    async def run(self, row: dict[str, Any]) -> RolloutResult:
        """Raises :class:`~prorl_nemo_rl.rows.BadRow`, and ``ClientError`` when the service refuses the job or is not
        there; whatever else happens to a rollout is in its result."""
        flight = self.board(row)
        try:
            return await flight.task
        finally:
            flight.task.cancel()

    def board(self, row: dict[str, Any]) -> Flight:
        """The rollout of this row: the one that its caller left, or a new one. Raises ``BadRow``."""
        key, request = digest(row), job_of(row, self.settings, run_id=self._run_id, number=next(self._count))
        if (left := self._left.pop(key, None)) is not None:
            if left.expiry is not None:
                left.expiry.cancel()
            return left
        flight = Flight(key, asyncio.create_task(self._fly(request)))
        self._flights.add(flight)
        flight.task.add_done_callback(lambda task: self._landed(flight, task))
        return flight

    def leave(self, flight: Flight) -> None:
        """The caller is gone."""
        self._left[flight.key] = flight
        loop = asyncio.get_running_loop()
        flight.expiry = loop.call_later(self.settings.grace_s, self._expire, flight)

    def _expire(self, flight: Flight) -> None:
        if self._left.get(flight.key) is flight:
            del self._left[flight.key]
        flight.task.cancel()

    def _landed(self, flight: Flight, task: asyncio.Task[RolloutResult]) -> None:
        self._flights.discard(flight)
        if not task.cancelled():
            task.exception()  # seen: there may be no caller any more

    async def _fly(self, request: JobRequest) -> RolloutResult:
        await asyncio.shield(self._registered)
        for attempt in itertools.count(1):
            job_id = f"{request.job_id}.{attempt}"
            try:
                result = await self._fleet.process(msgspec.structs.replace(request, job_id=job_id))
            except asyncio.CancelledError:
                with contextlib.suppress(ClientError):
                    await self._fleet.cancel(job_ids=(job_id,))
                raise
            if attempt == self.settings.attempts or not _worth_another(result):
                break
        return result

    async def _register(self) -> None:
        """NeMo RL hands out its engines' addresses before they answer."""
        deadline = asyncio.get_running_loop().time() + self.settings.engine_wait_s
        for backend in self._backends:
            await self._register_one(backend, deadline)

    async def _register_one(self, backend: BackendSpec, deadline: float) -> None:
        while True:
            try:
                await self._fleet.add_llm_server(backend)
            except ServiceError as error:
                if error.status < _REFUSED or asyncio.get_running_loop().time() > deadline:
                    log.error("%s cannot be registered: %s", backend.url, error)  # noqa: TRY400 - raised to callers
                    raise
                await asyncio.sleep(_RETRY_S)
            else:
                log.info("%s is registered", backend.url)
                return


def _worth_another(result: RolloutResult) -> bool:
    """Masked by a fault that was not the task's own; nobody gave it up."""
    return result.mask_sample and result.error is not None and result.error.kind not in ("task", "cancelled")
