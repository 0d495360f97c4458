"""One rollout server of a fleet: whether it lives, what room it has, and whether it holds the LLM servers it should."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping

from prorl.client.client import RolloutClient
from prorl.client.dealing import Addresses
from prorl.client.errors import ClientError, ServiceError
from prorl.wire.backends import BackendSpec
from prorl.wire.service import ServiceStatus

log = logging.getLogger("prorl.client")


class Member:
    """``down`` is set while the server is not to be used; ``why`` says why not. ``strays`` are rollouts that were sent
    here and went on elsewhere: they are cancelled when the server is back. ``shared``: LLM servers that this fleet did
    not register itself are somebody else's."""

    def __init__(self, client: RolloutClient, addresses: Addresses, *, shared: bool = False) -> None:
        self.client = client
        self.url = client.url
        self.addresses = addresses
        self.in_flight = 0
        self.capacity = 1
        self.why = "not asked yet"
        self.down = asyncio.Event()
        self.down.set()
        self.managed = False
        self.wanted: dict[str, BackendSpec] = {}
        self.strays: set[str] = set()
        self._shared = shared
        self._registered: set[str] = set()
        self._refused: set[str] = set()
        self._syncing = asyncio.Lock()

    @property
    def alive(self) -> bool:
        return not self.down.is_set()

    @property
    def load(self) -> float:
        return self.in_flight / self.capacity

    @property
    def has_room(self) -> bool:
        """A few more than it works on at once, so that it never waits for the next one."""
        return self.alive and self.in_flight < self.capacity + max(1, self.capacity // 8)

    def lose(self, why: str) -> None:
        if self.alive:
            log.warning("%s is set aside: %s", self.url, why)
        self.why = why
        self.down.set()

    async def check(self) -> bool:
        """Ask how it is. Returns whether it has just come (back). Raises ``ClientError`` when it does not answer."""
        status = await self.client.status()
        self.capacity = _capacity(status)
        if not status.accepting:
            self.lose("it takes no jobs: POST /start")
            return False
        back = not self.alive
        if back or self._differs(status):
            refused = await self.sync()
            if refused and len(refused) == len(self.wanted):
                self.lose(f"it can register none of its LLM servers: {next(iter(refused.values()))}")
                return False
        if back and self.strays:
            with contextlib.suppress(ServiceError):  # it was restarted and knows none of them
                await self.client.cancel(job_ids=tuple(self.strays))
            self.strays.clear()
        self.down.clear()
        return back

    async def sync(self) -> dict[str, ServiceError]:
        """Make the server's LLM servers those that it was dealt, under the versions they carry. Returns those that it
        refused: one that is down keeps nobody from the others, and is asked for again with the next check."""
        async with self._syncing:
            refused: dict[str, ServiceError] = {}
            if not self.managed:
                return refused
            # Asked in here: what was heard before may be older than the last sync, and to register again what is
            # registered ends the calls that run on it.
            has = self._ours(await self.client.status())
            if surplus := [url for url in has if url not in self.wanted]:
                await self.client.clear_llm_server(*surplus)
            for url, spec in self.wanted.items():
                if has.get(url) != spec.policy_version:
                    try:
                        await self.client.add_llm_server(spec)
                    except ServiceError as error:
                        refused[url] = error
            self._registered = set(self.wanted)
            if refused.keys() - self._refused:
                log.warning("%s cannot register %s: %s", self.url, ", ".join(refused), next(iter(refused.values())))
            self._refused = set(refused)
            return refused

    def _differs(self, status: ServiceStatus) -> bool:
        return self.managed and self._ours(status) != versions(self.wanted)

    def _ours(self, status: ServiceStatus) -> dict[str, str | None]:
        ours = self._registered | set(self.wanted)
        return {b.url: b.policy_version for b in status.pool.backends if not self._shared or b.url in ours}

    async def watch(self, every_s: float, strikes: int, *, on_change: asyncio.Event) -> None:
        """Ask again and again; ``strikes`` silent times in a row set it aside."""
        missed = 0
        while True:
            try:
                if await self.check():
                    log.info("%s is in use", self.url)
                missed = 0
            except ClientError as error:
                missed += 1
                if missed >= strikes or not self.alive:
                    self.lose(str(error))
            on_change.set()
            await asyncio.sleep(every_s)


def _capacity(status: ServiceStatus) -> int:
    """RUN's workers, and what is in the other stages: else those would hold places that RUN could work at."""
    others = sum(stage.busy for name, stage in status.stages.items() if name != "run")
    return max(1, status.stages["run"].workers + others) if "run" in status.stages else 1


def versions(specs: Mapping[str, BackendSpec]) -> dict[str, str | None]:
    return {url: spec.policy_version for url, spec in specs.items()}
