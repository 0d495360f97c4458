"""A Unix socket that leads to one job's door and nowhere else, for agents in sandboxes that have no network.

It stands alone in a folder that can be shown to a sandbox; the folder lies in one that no other user can enter, whose
name tells which server's it is, so that the next one can remove what a killed one left.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvicorn
from uvicorn.server import ServerState

from prorl.api.errors import SandboxFault
from prorl.capture.door import Door
from prorl.capture.doors import Doors
from prorl.sandbox.inside import tree
from prorl.server.heads import BoundedHead
from prorl.server.proxy import Proxy

NAME = "socket"
FOLDER = re.compile(r"prorl-door-(?P<pid>\d+)-(?P<started>\d+)-.+")
LONGEST = 100  # of a socket's path, in bytes, for the kernel's 108
CLOSE_WITHIN = 2.0
# What an agent could take of the server's descriptors and memory.
MAX_CONNECTIONS = 64
MAX_BODY = 16 << 20


class Sockets:
    """``keep_alive_s`` as for the server's other connections; the rest is :class:`Proxy`'s."""

    def __init__(self, doors: Doors, *, body_limit: int, quiet_s: float, keep_alive_s: int) -> None:
        self._doors = doors
        self._body_limit = min(body_limit, MAX_BODY)
        self._quiet_s = quiet_s
        self._keep_alive_s = keep_alive_s

    async def listen(self, door: Door) -> tuple[Path, Callable[[], Awaitable[None]]]:
        """The socket's path, and what closes it. Raises ``SandboxFault``."""
        app = Proxy(self._doors, body_limit=self._body_limit, quiet_s=self._quiet_s, only=door.job_id)
        config = uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=self._keep_alive_s,
        )
        config.load()
        state = ServerState()
        private: Path | None = None
        try:
            private = await asyncio.to_thread(_make_folder)
            path = private / "door" / NAME
            loop = asyncio.get_running_loop()
            server = await loop.create_unix_server(lambda: _Bounded(config, state, {}), str(path))
            path.chmod(0o666)  # who can reach the folder may connect: the sandbox has a uid of its own
        except BaseException as error:
            if private is not None:
                shutil.rmtree(private, ignore_errors=True)
            if isinstance(error, OSError):
                raise SandboxFault(f"no socket for the agent's model calls: {error}", code="no_socket") from error
            raise

        async def close() -> None:
            server.close()
            for connection in list(state.connections):
                connection.shutdown()  # once its answer is out
            if state.tasks:
                await asyncio.wait(state.tasks, timeout=CLOSE_WITHIN)
            for connection in list(state.connections):
                connection.transport.abort()
            await asyncio.to_thread(shutil.rmtree, private, ignore_errors=True)

        return path, close


class _Bounded(BoundedHead):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()


def sweep(places: tuple[Path, ...] | None = None) -> int:
    """Remove the folders of servers that are no more; returns how many there were."""
    removed = 0
    for folder in {path for place in places or _places() for path in place.glob("prorl-door-*")}:
        found = FOLDER.fullmatch(folder.name)
        try:
            if found is None or folder.is_symlink() or folder.lstat().st_uid != os.geteuid():
                continue
        except OSError:
            continue
        owner = tree.read_process(int(found["pid"]))
        if owner is None or owner.started != int(found["started"]):
            shutil.rmtree(folder, ignore_errors=True)
            removed += 1
    return removed


def _places() -> tuple[Path, ...]:
    return Path(tempfile.gettempdir()), Path("/tmp")  # noqa: S108


def _make_folder() -> Path:
    me = tree.read_process(os.getpid())
    prefix = f"prorl-door-{os.getpid()}-{me.started if me else 0}-"
    usual, short = _places()
    place = usual if len(os.fsencode(usual / f"{prefix}12345678" / "door" / NAME)) <= LONGEST else short
    private = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
    (private / "door").mkdir(mode=0o755)
    (private / "door").chmod(0o755)
    return private
