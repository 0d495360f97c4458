"""All runtimes of a server: which of them work here, which one to take, and every sandbox that is alive."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prorl.api.errors import ConfigError, SandboxFault
from prorl.api.records import RuntimeRecord
from prorl.api.sandbox import MAX_TRANSFER, ActionResult, OnOutput, Probe, Sandbox, SandboxRuntime, SandboxSpec


class SandboxManager:
    """``default`` names the runtime to take when a job names none; without it the working one of highest preference
    is taken. Probes are made once, when first needed, by really starting a sandbox.
    """

    def __init__(self, runtimes: Mapping[str, RuntimeRecord], default: str | None = None) -> None:
        self._records = dict(runtimes)
        self._default = default
        self._runtimes: dict[str, SandboxRuntime] = {}
        self._probes: dict[str, Probe] = {}
        self._probing = asyncio.Lock()
        self._alive: set[Tracked] = set()
        self._closed = False

    async def start(self, spec: SandboxSpec, runtime: str | None = None) -> Sandbox:
        """Raises :class:`SandboxFault` when it cannot be started, :class:`ConfigError` for an unknown runtime."""
        if self._closed:
            raise SandboxFault("the server is going down", code="closed")
        name = runtime or self._default or await self._choose()
        sandbox = Tracked(await self._runtime(name).start(spec), self._alive)
        if self._closed:
            await sandbox.stop(grace=0)
            raise SandboxFault("the server is going down", code="closed")
        return sandbox

    async def probes(self) -> list[Probe]:
        """What every runtime can do here, highest preference first."""
        return [await self._probe(record.name) for record in self._by_preference()]

    async def sweep(self) -> int:
        """Remove what killed servers left behind; returns how many things were ended.

        Raises an :class:`ExceptionGroup` of what went wrong, after every runtime had its turn.
        """
        ended, errors = 0, []
        for record in self._by_preference():
            try:
                ended += await self._runtime(record.name).sweep()
            except Exception as error:
                errors.append(error)
        if errors:
            raise ExceptionGroup(f"not all was swept ({ended} things were ended)", errors)
        return ended

    async def close(self) -> None:
        """Stop every sandbox that is alive, those of cancelled starts too."""
        self._closed = True
        alive = list(self._alive)
        await asyncio.gather(*(sandbox.stop(grace=0) for sandbox in alive))
        for runtime in self._runtimes.values():
            close = getattr(runtime, "close", None)  # optional in the contract
            if close is not None:
                await close()

    def _by_preference(self) -> list[RuntimeRecord]:
        return sorted(self._records.values(), key=lambda record: (-record.preference, record.name))

    def _runtime(self, name: str) -> SandboxRuntime:
        if name not in self._records:
            known = ", ".join(sorted(self._records)) or "none"
            raise ConfigError(f"no sandbox runtime {name!r}; known: {known}")
        if name not in self._runtimes:
            self._runtimes[name] = self._records[name].factory()
        return self._runtimes[name]

    async def _choose(self) -> str:
        reasons = []
        for record in self._by_preference():
            if record.preference < 0:
                continue
            probe = await self._probe(record.name)
            if probe.works:
                return record.name
            reasons.append(f"{record.name}: {probe.reason}")
        by_name = [record.name for record in self._by_preference() if record.preference < 0]
        advice = f" Set [sandbox] runtime to {' or '.join(by_name)} if you can do without isolation." if by_name else ""
        tried = "; ".join(reasons) or "none is installed"
        raise SandboxFault(f"no sandbox runtime works here ({tried}).{advice}", code="no_runtime")

    async def _probe(self, name: str) -> Probe:
        async with self._probing:
            if name not in self._probes:
                try:
                    self._probes[name] = await self._runtime(name).probe()
                except Exception as error:
                    reason = f"{type(error).__name__}: {error}"
                    self._probes[name] = Probe(runtime=name, works=False, isolation="none", reason=reason)
            return self._probes[name]


class Tracked:
    """A sandbox the manager knows to be alive until it was stopped."""

    def __init__(self, sandbox: Sandbox, alive: set[Tracked]) -> None:
        self._sandbox = sandbox
        self._alive = alive
        alive.add(self)

    @property
    def id(self) -> str:
        return self._sandbox.id

    @property
    def runtime(self) -> str:
        return self._sandbox.runtime

    @property
    def workdir(self) -> str:
        return self._sandbox.workdir

    async def act(
        self, action: str, arguments: Mapping[str, Any], *, timeout: float, on_output: OnOutput | None = None
    ) -> ActionResult:
        return await self._sandbox.act(action, arguments, timeout=timeout, on_output=on_output)

    async def upload(
        self, local: str | Path, remote: str, *, timeout: float = 600.0, max_bytes: int = MAX_TRANSFER
    ) -> None:
        await self._sandbox.upload(local, remote, timeout=timeout, max_bytes=max_bytes)

    async def download(
        self, remote: str, local: str | Path, *, timeout: float = 600.0, max_bytes: int = MAX_TRANSFER
    ) -> None:
        await self._sandbox.download(remote, local, timeout=timeout, max_bytes=max_bytes)

    async def stop(self, *, grace: float = 0.5) -> None:
        await self._sandbox.stop(grace=grace)
        self._alive.discard(self)
