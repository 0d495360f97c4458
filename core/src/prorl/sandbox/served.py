"""A sandbox alive, whatever started it: a channel to the action server, and a way to end it all."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from prorl.api.errors import SandboxFault
from prorl.api.sandbox import MAX_TRANSFER, ActionResult, OnOutput
from prorl.sandbox import transfer
from prorl.sandbox.channel import Channel, Token

LANES = frozenset(("bash", "ipython", "transfer"))
Kill = Callable[[], Awaitable[None]]


class ServedSandbox:
    """Implements :class:`prorl.api.Sandbox`. ``kill`` ends every process of the sandbox and removes what it left."""

    def __init__(self, *, id: str, runtime: str, workdir: str, channel: Channel, kill: Kill) -> None:
        self._id = id
        self._runtime = runtime
        self._workdir = workdir
        self._channel = channel
        self._kill = kill
        # One command at a time in one shell: a second one waits here, and its time does not run.
        self._lanes = {lane: asyncio.Lock() for lane in LANES}
        self._stopping: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        return self._id

    @property
    def runtime(self) -> str:
        return self._runtime

    @property
    def workdir(self) -> str:
        return self._workdir

    async def act(
        self, action: str, arguments: Mapping[str, Any], *, timeout: float, on_output: OnOutput | None = None
    ) -> ActionResult:
        return await self._act(action, arguments, timeout=timeout, on_output=on_output)

    async def _act(self, action: str, arguments: Mapping[str, Any], **more: Any) -> ActionResult:
        lane = None if arguments.get("is_input") else self._lanes.get(action)
        async with lane or contextlib.nullcontext():
            return await self._channel.act(action, arguments, **more)

    async def upload(
        self, local: str | Path, remote: str, *, timeout: float = 600.0, max_bytes: int = MAX_TRANSFER
    ) -> None:
        await transfer.upload(self._act, Path(local), remote, timeout=timeout, max_bytes=max_bytes)

    async def download(
        self, remote: str, local: str | Path, *, timeout: float = 600.0, max_bytes: int = MAX_TRANSFER
    ) -> None:
        await transfer.download(self._act, remote, Path(local), timeout=timeout, max_bytes=max_bytes)

    async def stop(self, *, grace: float = 0.5) -> None:
        """End everything inside; at most ``grace`` seconds of it gently. Again and again is the same as once."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(grace), name=f"stop-{self._id}")
        await asyncio.shield(self._stopping)

    async def _stop(self, grace: float) -> None:
        try:
            if grace > 0 and not self._channel.lost:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(grace):
                        await self._channel.bye()
                        await self._channel.ended()
        finally:
            await self._channel.close()
            await self._kill()


async def connect(
    sock: socket.socket,
    settings: Mapping[str, Any],
    timeout: float,
    explain: Callable[[], str],
    token: Token | None = None,
) -> Channel:
    """Shake hands over ``sock``; on failure the socket is closed and ``explain`` adds what the runtime printed."""
    channel = await Channel.open(sock)
    try:
        await channel.hello(settings, timeout, token)
    except SandboxFault as fault:
        await channel.close()
        said = explain()
        raise SandboxFault(f"{said} ({fault})" if said else str(fault), code=fault.code) from fault
    except BaseException:
        await channel.close()
        raise
    return channel


async def start_or_undo(starting: Coroutine[Any, Any, ServedSandbox]) -> ServedSandbox:
    """Run a start as a task of its own. When the caller is cancelled it is undone before the cancellation goes on, also
    if it had just succeeded and only the caller had not heard of it yet.
    """
    task = asyncio.create_task(starting, name="sandbox-start")
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.cancelling():  # an event loop that ends has done it; twice would interrupt the cleaning up
            task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is None:
            await task.result().stop(grace=0)
        raise
