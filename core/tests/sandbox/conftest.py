"""Real runtimes. Where one cannot work on this machine its tests are skipped with what its probe said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from prorl.api import ActionResult, Sandbox, SandboxRuntime, SandboxSpec
from prorl.sandbox.bubblewrap import Bubblewrap
from prorl.sandbox.inside import tree
from prorl.sandbox.local import Local
from prorl.sandbox.settings import SandboxSettings

Act = Callable[..., Awaitable[ActionResult]]
PATIENCE = 60.0
_reasons: dict[str, str | None] = {}


async def working(runtime: SandboxRuntime) -> SandboxRuntime:
    if runtime.name not in _reasons:
        probe = await runtime.probe()
        _reasons[runtime.name] = None if probe.works else probe.reason
    if _reasons[runtime.name]:
        pytest.skip(f"{runtime.name}: {_reasons[runtime.name]}")
    return runtime


@pytest.fixture
async def bubblewrap() -> Bubblewrap:
    runtime = Bubblewrap()
    await working(runtime)
    return runtime


@pytest.fixture
def local(tmp_path) -> Local:
    return Local(SandboxSettings(scratch=str(tmp_path)))


@pytest.fixture(params=["bubblewrap", "local"])
async def runtime(request, tmp_path) -> SandboxRuntime:
    made = Bubblewrap() if request.param == "bubblewrap" else Local(SandboxSettings(scratch=str(tmp_path)))
    return await working(made)


@pytest.fixture
async def sandbox(runtime) -> AsyncIterator[Sandbox]:
    sandbox = await runtime.start(SandboxSpec())
    yield sandbox
    await sandbox.stop(grace=0)


@pytest.fixture
def bash(sandbox) -> Act:
    async def run(command: str, *, timeout: float = PATIENCE, **more) -> ActionResult:
        return await sandbox.act("bash", {"command": command, **more}, timeout=timeout)

    return run


@pytest.fixture
def ipython(sandbox) -> Act:
    async def run(code: str, *, timeout: float = PATIENCE) -> ActionResult:
        return await sandbox.act("ipython", {"code": code}, timeout=timeout)

    return run


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Wait for a condition instead of sleeping; the test fails when it does not come."""

    async def wait(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():  # noqa: ASYNC110 - the kernel tells nobody
                await asyncio.sleep(0.02)

    return wait


@pytest.fixture
def running() -> Callable[[str], int]:
    """How many processes of the whole machine have ``needle`` in their command line."""

    def count(needle: str) -> int:
        found = 0
        for process in tree.processes():
            try:
                line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            except OSError:
                continue
            found += needle.encode() in line.replace(b"\0", b" ")
        return found

    return count
