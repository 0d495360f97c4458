"""The same frames to the same action server, over a Unix socket pair and over TCP loopback: part of bash_actions.py."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import msgspec
from figures import alternate, show

from prorl.api import ActionResult, Limits
from prorl.sandbox.channel import Channel
from prorl.sandbox.inside import frames

PACKAGES = str(Path(frames.__file__).parent.parent)
BOOT = "import sys; sys.path.insert(0, {!r}); from inside.server import main; main({})"


async def transports(rounds: int) -> None:
    async with served(*socket.socketpair()) as unix, served(*tcp_pair()) as tcp:
        for action in ("ping", "bash"):
            call = {"ping": ping, "bash": true}[action]
            ways = {"Unix socket pair": (partial(call, unix), 200), "TCP loopback": (partial(call, tcp), 200)}
            title = {"ping": "Frames alone: an action that is refused at once", "bash": "`true` over each transport"}
            show(title[action], await alternate(ways, rounds), "Unix socket pair")


async def ping(channel: Channel) -> ActionResult:
    return await channel.act("ping", {}, timeout=10)


async def true(channel: Channel) -> ActionResult:
    return await channel.act("bash", {"command": "true"}, timeout=10)


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    for end in (ours, theirs):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return ours, theirs


@contextlib.asynccontextmanager
async def served(ours: socket.socket, theirs: socket.socket) -> AsyncIterator[Channel]:
    """An action server at the other end, as an ordinary process."""
    with tempfile.TemporaryDirectory() as folder:
        argv = [sys.executable, "-I", "-S", "-c", BOOT.format(PACKAGES, theirs.fileno())]
        with theirs:
            server = await asyncio.create_subprocess_exec(*argv, pass_fds=[theirs.fileno()], env={})
        ours.setblocking(False)
        channel = Channel(*await asyncio.open_connection(sock=ours))
        limits = msgspec.to_builtins(Limits(memory_mb=None, processes=None, file_mb=None, tmp_mb=None))
        env = {"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder}
        hello = {"protocol": frames.PROTOCOL, "uid": None, "gid": 0, "limits": limits, "env": env}
        try:
            await channel.hello({**hello, "workdir": folder, "python": sys.executable}, 30)
            yield channel
        finally:
            await channel.close()
            await server.wait()
