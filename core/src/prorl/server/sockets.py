"""A Unix socket that leads to one job's door and nowhere else, for agents in sandboxes that have no network.

It stands alone in a folder that can be shown to a sandbox; the folder lies in one that no other user can enter.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from prorl.capture.door import Door
from prorl.capture.doors import Doors
from prorl.server.proxy import Proxy

NAME = "socket"
CLOSE_WITHIN = 2.0


class Sockets:
    """``keep_alive_s`` as for the server's other connections; the rest is :class:`Proxy`'s."""

    def __init__(self, doors: Doors, *, body_limit: int, quiet_s: float, keep_alive_s: int) -> None:
        self._doors = doors
        self._body_limit = body_limit
        self._quiet_s = quiet_s
        self._keep_alive_s = keep_alive_s

    async def listen(self, door: Door) -> tuple[Path, Callable[[], Awaitable[None]]]:
        """The socket's path, and what closes it. Raises ``OSError``."""
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
        private = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="prorl-door-"))
        try:
            folder = private / "door"
            folder.mkdir(mode=0o755)
            path = folder / NAME
            server = await asyncio.get_running_loop().create_unix_server(
                lambda: HttpToolsProtocol(config, state, {}), str(path)
            )
            path.chmod(0o666)  # who can reach the folder may connect: the sandbox has a uid of its own
        except BaseException:
            shutil.rmtree(private, ignore_errors=True)
            raise

        async def close() -> None:
            server.close()
            for connection in list(state.connections):
                connection.shutdown()  # once its answer is out
            if state.tasks:
                await asyncio.wait(state.tasks, timeout=CLOSE_WITHIN)
            for connection in list(state.connections):
                connection.transport.abort()
            shutil.rmtree(private, ignore_errors=True)

        return path, close
