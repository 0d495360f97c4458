"""Real runtimes. Where one cannot work on this machine its tests are skipped with what its probe said."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from prorl.api import ActionResult, Limits, Sandbox, SandboxRuntime, SandboxSpec
from prorl.sandbox.bubblewrap import Bubblewrap
from prorl.sandbox.channel import Channel
from prorl.sandbox.inside import frames, tree
from prorl.sandbox.inside.frames import Frame, FrameReader
from prorl.sandbox.local import BOOT, Local
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


@pytest.fixture
def channel_against() -> Callable[..., Awaitable[tuple[Channel, socket.socket]]]:
    """``channel, theirs = await channel_against(b"...")``: the host's end of a channel, to whom these bytes were sent
    (after the greeting of an honest server), and the other end."""

    async def open_channel(*sent: bytes, greet: bool = True) -> tuple[Channel, socket.socket]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        hello = frames.pack(frames.HELLO, 0, b'{"protocol": 1, "python": "3.11.7", "uid": 1}')
        await asyncio.get_running_loop().sock_sendall(theirs, (hello if greet else b"") + b"".join(sent))
        return await Channel.open(ours), theirs

    return open_channel


@pytest.fixture
def server(tmp_path):
    """The action server as a plain process; returns what it answers until it closes, and how it exited."""

    async def talk(*chunks: bytes, greet: bool = True) -> tuple[list[Frame], int, str]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        hello = {
            "protocol": 1,
            "uid": None,
            "limits": msgspec.to_builtins(Limits(processes=None)),
            "env": {"PATH": "/usr/bin:/bin"},
            "workdir": str(tmp_path),
            "python": sys.executable,
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", BOOT, str(theirs.fileno())),
            pass_fds=[theirs.fileno()],
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        theirs.close()
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        if greet:
            writer.write(frames.pack(frames.HELLO, 0, msgspec.json.encode(hello)))
        for chunk in chunks:
            writer.write(chunk)
        writer.write_eof()
        parser, answers = FrameReader(), []
        async with asyncio.timeout(60):
            try:
                while data := await reader.read(65536):
                    answers += parser.feed(data)
            except ConnectionResetError:
                pass  # it closed with something of ours unread
            _, errors = await process.communicate()
        writer.close()
        assert process.returncode is not None
        return answers, process.returncode, errors.decode()

    return talk
