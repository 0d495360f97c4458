"""One task's hold on the pool: all of its turns go to one backend, so that the prefix cache serves them.

The backend changes only when it must: it was set aside, cleared, or registered anew. A call that meets a dead server is
tried on another one; nothing has been appended to the task's tokens by then, so a retry changes nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, suppress
from time import perf_counter
from typing import Protocol

import msgspec

from prorl.api.errors import ModelFault
from prorl.api.llm import Conversation, Generation
from prorl.llm.pool.backend import Backend
from prorl.llm.pool.settings import PoolSettings
from prorl.wire.sampling import SamplingParams

Hold = Callable[[], AbstractContextManager[None]]


class Assigning(Protocol):
    """What a lease asks of the pool that made it (:class:`prorl.llm.pool.pool.BackendPool`)."""

    paused: bool

    @property
    def settings(self) -> PoolSettings: ...

    @property
    def closed(self) -> bool: ...

    def usable(self, backend: Backend) -> bool: ...

    def assign(self, last: str | None, avoid: Collection[str], *, patient: bool) -> Backend | None: ...

    def set_aside(self, backend: Backend, reason: str) -> None: ...

    def changed(self) -> asyncio.Event: ...

    def counted_waiting(self) -> AbstractContextManager[None]: ...

    def nobody(self, waited: float) -> ModelFault: ...


class Sampled(msgspec.Struct, kw_only=True):
    """One reply and where it came from. ``policy_version`` is the one the backend was registered under when the call
    began; where the engine changed weights midway, ``generation.weight_spans`` has more than one span, in the engine's
    own names. ``ms`` is the wall time of the attempt that succeeded, ``attempts`` how many it took."""

    generation: Generation
    backend: str
    policy_version: str
    ms: float
    attempts: int = 1


class Lease:
    """Made by :meth:`BackendPool.lease`; one per task. Its chats may call at the same time."""

    def __init__(self, pool: Assigning, job_id: str, *, priority: int, wait_s: float, hold: Hold) -> None:
        self.job_id = job_id
        self._pool = pool
        self._priority = priority
        self._wait_s = wait_s
        self._hold = hold
        self._backend: Backend | None = None

    async def ready(self) -> Backend:
        """The task's backend; the first call assigns it.

        Waits up to ``wait_s`` for one, while the job's clock stands still. Raises ``ModelFault`` with code
        ``no_backend``, or ``paused`` when the pool stays paused for too long.
        """
        return await self._find(avoid=set())

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, conversation: Conversation | None = None
    ) -> Sampled:
        """One reply, checked. Raises ``ModelFault`` and ``ContextOverflow``."""
        avoid: set[str] = set()
        for attempt in range(1, self._pool.settings.attempts + 1):
            backend = await self._enter(avoid)
            version, started = backend.policy_version, perf_counter()
            try:
                generation = await backend.generate(
                    prompt_ids,
                    sampling,
                    session_id=self.job_id,
                    priority=self._priority,
                    conversation=conversation,
                )
            except ModelFault as fault:
                if fault.code != "unreachable":
                    raise
                self._pool.set_aside(backend, str(fault))
                if attempt == self._pool.settings.attempts:
                    raise
                avoid.add(backend.url)
            else:
                ms = (perf_counter() - started) * 1000
                return Sampled(
                    generation=generation, backend=backend.url, policy_version=version, ms=ms, attempts=attempt
                )
            finally:
                backend.slots.release()
        raise AssertionError("the loop returns or raises")

    def lost(self, backend: Backend, reason: str) -> None:
        """``backend`` did not answer: the next :meth:`ready` finds another one, or waits."""
        self._pool.set_aside(backend, reason)

    def release(self) -> None:
        """The task is over. Harmless twice."""
        self._backend = None

    async def _enter(self, avoid: set[str]) -> Backend:
        """A backend with a free slot, still in use when the slot came free. The slot is the caller's to release."""
        while True:
            backend = await self._find(avoid)
            if backend.slots.locked():
                with self._hold():
                    await backend.slots.acquire()
            else:
                await backend.slots.acquire()
            if self._pool.usable(backend):
                return backend
            backend.slots.release()

    async def _find(self, avoid: set[str]) -> Backend:
        if (backend := self._place(avoid, patient=self._wait_s > 0)) is not None:
            return backend
        with self._hold():
            return await self._wait(avoid)

    def _place(self, avoid: set[str], *, patient: bool) -> Backend | None:
        if self._backend is None or not self._pool.usable(self._backend):
            last = None if self._backend is None else self._backend.url
            found = self._pool.assign(last, avoid, patient=patient)
            if found is None:
                return None
            self._backend = found
        return self._backend

    async def _wait(self, avoid: set[str]) -> Backend:
        clock = asyncio.get_running_loop().time
        waited = {True: 0.0, False: 0.0}  # by whether the pool was paused: an update of the weights is not an outage
        with self._pool.counted_waiting():
            while True:
                changed, paused, since = self._pool.changed(), self._pool.paused, clock()
                left = (self._pool.settings.pause_s if paused else self._wait_s) - waited[paused]
                if (backend := self._place(avoid, patient=left > 0)) is not None:
                    return backend
                if left <= 0 or self._pool.closed:
                    raise self._pool.nobody(waited[paused])
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await changed.wait()
                waited[paused] += clock() - since
