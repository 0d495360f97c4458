"""All LLM servers that trainers registered, and which task uses which.

``add`` registers a server, ``clear`` removes servers and begins the next policy version. Running tasks hold a
:class:`~prorl.llm.pool.lease.Lease`: a call in flight ends where it began, the next one goes to what is registered
then (the same address if it came back) and carries its version. A server that fails is *set aside*: it leaves the heap,
its tasks move, and a watcher asks it again until it is back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from prorl.api.errors import ConfigError, ModelFault
from prorl.api.records import DialectRecord
from prorl.llm.pool.backend import Backend
from prorl.llm.pool.connect import Connector
from prorl.llm.pool.heap import TaskHeap
from prorl.llm.pool.lease import Hold, Lease, Sampled
from prorl.llm.pool.settings import PoolSettings
from prorl.llm.tokenizers.local import TokenizerShelf
from prorl.wire.backends import BackendSpec, BackendStatus, PoolStatus

__all__ = ["BackendPool", "Lease", "PoolSettings", "Sampled"]

log = logging.getLogger("prorl.llm")


class BackendPool:
    """Use from one event loop. Watchers live from registration to ``clear`` or ``close``."""

    def __init__(self, dialects: Mapping[str, DialectRecord], settings: PoolSettings | None = None) -> None:
        self.settings = settings or PoolSettings()
        self.paused = False
        self._connector = Connector(dialects, self.settings)
        self._shelf = TokenizerShelf()
        self._backends: dict[str, Backend] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._retired: set[Backend] = set()
        self._heap = TaskHeap()
        self._clears = 0
        self._cleared: set[str] = set()
        self._settled_at: float | None = None
        self._version = "0"
        self._waiting = 0
        self.closed = False
        self._changed = asyncio.Event()

    # --- what a trainer does -------------------------------------------------------------------------------------

    async def start(self) -> None:
        self.closed = False

    async def close(self) -> None:
        """Ends every call and every watcher. Waiting leases fail."""
        self.closed = True
        watchers = list(self._watchers.values())
        backends = [*self._backends.values(), *self._retired]
        self._remove(list(self._backends))
        self._notify()
        if watchers:
            await asyncio.wait(watchers)
        await asyncio.gather(*(backend.close() for backend in backends))
        self._retired.clear()

    async def add(self, spec: BackendSpec) -> BackendStatus:
        """Register a server, or register it anew.

        Raises ``ConfigError`` for an unknown dialect, a server that speaks none or lacks the model, a tokenizer that
        cannot be loaded; ``ModelFault`` with code ``unreachable`` when nothing answers.
        """
        spec = msgspec.structs.replace(spec, url=spec.url.rstrip("/"))
        self._require_open()
        connection = await self._connector.connect(spec)
        if self.closed:
            await connection.client.aclose()
            self._require_open()
        self._version = spec.policy_version if spec.policy_version is not None else str(self._clears)
        backend = Backend(
            spec,
            connection.info,
            connection.dialect,
            client=connection.client,
            policy_version=self._version,
            settings=self.settings,
            shelf=self._shelf,
        )
        if spec.tokenizer is not None:
            try:
                await backend.tokenizer()  # a wrong folder is the registration's fault, not that of every rollout
            except ConfigError:
                await backend.close()
                raise
        self._remove([spec.url])
        self._backends[spec.url] = backend
        self._heap.join(backend)
        self._watchers[spec.url] = asyncio.create_task(self._watch(backend), name=f"watch {spec.url}")
        self._settle()
        self._notify()
        return backend.status()

    async def clear(self, urls: Collection[str] = ()) -> PoolStatus:
        """Remove these servers; none given: all of them, and the next policy version begins.

        Raises ``ConfigError`` for a url that is not registered, and then removes nothing.
        """
        chosen = [url.rstrip("/") for url in urls]
        if unknown := [url for url in chosen if url not in self._backends]:
            raise ConfigError(
                f"not registered: {', '.join(unknown)}; registered: {', '.join(self._backends) or 'none'}"
            )
        if not chosen:
            self._clears += 1
            self._version = str(self._clears)
            self._cleared, self._settled_at = set(self._backends), None
        self._remove(chosen or list(self._backends))
        return self.status()

    def pause(self) -> None:
        """Hold back new calls (weights are being updated). Calls in flight are the engine's to finish or to hold."""
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self._notify()

    def status(self) -> PoolStatus:
        return PoolStatus(
            policy_version=self._version,
            paused=self.paused,
            waiting=self._waiting,
            backends=[backend.status() for backend in self._backends.values()],
        )

    def lease(self, job_id: str, *, priority: int = 0, wait_s: float | None, hold: Hold) -> Lease:
        """A task's hold on the pool. ``hold()`` is entered while the task waits; ``wait_s=None``: the settings'."""
        wait = self.settings.wait_s if wait_s is None else wait_s
        return Lease(self, job_id, priority=priority, wait_s=wait, hold=hold)

    # --- what leases do ------------------------------------------------------------------------------------------

    def usable(self, backend: Backend) -> bool:
        return not self.paused and backend.healthy and self._backends.get(backend.url) is backend

    def assign(self, last: str | None, avoid: Collection[str], *, patient: bool) -> Backend | None:
        """Count one task for a backend: for the one at the task's last address if it is there, else for the least.

        ``patient`` tasks get ``None`` for as long as their address, just cleared, may still come back.
        """
        if self.paused:
            return None
        if last is not None and last not in avoid and (known := self._backends.get(last)) and known in self._heap:
            self._heap.assign(known)
            return known
        if patient and last in self._cleared and last not in self._backends and self._settling():
            return None
        return self._heap.take(avoid)

    def set_aside(self, backend: Backend, reason: str) -> None:
        """Out of the heap until its watcher finds it well."""
        if backend.healthy:
            log.warning("set aside: %s", reason)
            backend.healthy = False
            self._heap.leave(backend)
        backend.reason = reason
        backend.suspect.set()

    def changed(self) -> asyncio.Event:
        """Set at the next change that may help somebody who waits."""
        return self._changed

    @contextmanager
    def counted_waiting(self) -> Iterator[None]:
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    def nobody(self, waited: float) -> ModelFault:
        """Why there is nothing to call, and what to do about it."""
        after = f" after {waited:.0f} s" if waited else ""
        if self.closed:
            return ModelFault("the LLM pool is closed", code="no_backend")
        if self.paused:
            return ModelFault(f"the LLM pool is still paused{after}: resume it", code="paused")
        if not self._backends:
            return ModelFault(f"no LLM server{after}: register one with POST /add_llm_server", code="no_backend")
        reasons = "; ".join(f"{backend.url}: {backend.reason}" for backend in self._backends.values())
        return ModelFault(f"no LLM server works{after}: {reasons}", code="no_backend")

    # --- inside --------------------------------------------------------------------------------------------------

    def _require_open(self) -> None:
        if self.closed:
            raise ConfigError("the LLM pool is closed: POST /start first")

    def _remove(self, urls: Collection[str]) -> None:
        self._retired = {backend for backend in self._retired if not backend.closed}
        for url in urls:
            if (backend := self._backends.pop(url, None)) is not None:
                self._heap.leave(backend)
                self._watchers.pop(url).cancel()
                self._retired.add(backend)
                backend.retire()

    def _settle(self) -> None:
        """The first server after a ``clear`` is here: give the others time."""
        if self._settled_at is None and self._cleared:
            loop = asyncio.get_running_loop()
            self._settled_at = loop.time() + self.settings.settle_s
            loop.call_at(self._settled_at, self._notify)

    def _settling(self) -> bool:
        return self._settled_at is None or asyncio.get_running_loop().time() < self._settled_at

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _watch(self, backend: Backend) -> None:
        """Ask a backend how it is: now and then while it works, soon and then ever less often while it is aside."""
        s, failed = self.settings, 0
        while True:
            wait = s.health_every_s if backend.healthy else min(s.retry_first_s * 2 ** min(failed, 32), s.retry_last_s)
            await backend.rest(wait)
            try:
                await backend.check(s.health_timeout_s)
            except ModelFault as fault:
                failed += 1
                changed = fault.code == "changed_engine"  # whatever it samples is not what was registered
                if not backend.healthy or failed >= s.strikes or changed:
                    self.set_aside(backend, str(fault))
                if failed >= s.strikes or changed:
                    backend.drop_calls()
            else:
                failed = 0
                if not backend.healthy:
                    self._welcome_back(backend)

    def _welcome_back(self, backend: Backend) -> None:
        log.info("back: %s", backend.url)
        backend.healthy, backend.reason = True, None
        self._heap.join(backend)
        self._notify()
