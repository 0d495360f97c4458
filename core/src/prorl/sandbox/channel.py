"""The host's end of the frames. Nothing that comes back is trusted: sizes are capped before allocation, JSON is decoded
into Structs, and the first frame that no honest server sends ends the sandbox as a fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import AsyncIterable, Mapping
from typing import Any, Literal

import msgspec

from prorl.api.errors import SandboxFault
from prorl.api.sandbox import ActionResult, OnOutput
from prorl.sandbox import bare
from prorl.sandbox.inside import frames
from prorl.sandbox.inside.action import DEFAULT_OUTPUT_CHARS
from prorl.sandbox.inside.capture import Capture
from prorl.sandbox.inside.frames import Frame, ProtocolError

ANSWER_MARGIN = 15.0  # seconds after an action's own timeout; the server needs about 2 to end what does not yield


class Hello(msgspec.Struct, kw_only=True):
    """What the action server says of itself. ``server`` is ``bash`` where the image has no Python."""

    protocol: int
    python: str
    uid: int
    server: Literal["python", "bash"] = "python"
    token: str = ""


class Token:
    """A secret of one sandbox: the host shows the server one half, and the server answers with the other.

    Both are handed to the server through a pipe, so that neither its command line nor its environment holds them. It is
    for connections that could be anybody's; who holds one end of a socket pair is known by that.
    """

    def __init__(self) -> None:
        self.host, self.server = secrets.token_hex(16), secrets.token_hex(16)

    def pipe(self) -> int:
        """A descriptor for the child to inherit; the caller closes it."""
        reading, writing = os.pipe()
        os.write(writing, f"{self.host}{self.server}\n".encode())
        os.close(writing)
        return reading


class _Fault(msgspec.Struct):
    message: str


_hello = msgspec.json.Decoder(Hello)
_end = msgspec.json.Decoder(ActionResult)
_fault = msgspec.json.Decoder(_Fault)
_encoder = msgspec.json.Encoder()


class _Pending:
    __slots__ = ("capture", "future", "on_output", "ready")

    def __init__(self, on_output: OnOutput | None) -> None:
        self.future: asyncio.Future[ActionResult] = asyncio.get_running_loop().create_future()
        self.on_output = on_output
        self.ready = asyncio.Event()
        self.capture: Capture | None = None  # where the server does not keep the output itself


class Channel:
    """One connection to one action server. Raises :class:`SandboxFault` (``code="sandbox_lost"``) once it is lost."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._pending: dict[int, _Pending] = {}
        self._abandoned: set[int] = set()
        self._requests = 0
        self._lost: tuple[str, str] | None = None  # message and code; each caller raises a fault of its own
        self._task: asyncio.Task[None] | None = None
        self._bare = False

    @classmethod
    async def open(cls, sock: socket.socket) -> Channel:
        """Take over ``sock``, connected and non-blocking."""
        return cls(*await asyncio.open_unix_connection(sock=sock))

    @property
    def lost(self) -> bool:
        return self._lost is not None

    async def hello(self, settings: Mapping[str, Any], timeout: float, token: Token | None = None) -> Hello:
        """Set up the sandbox; returns when the server is ready for actions."""
        settings = {**settings, "token": token.host if token else ""}
        try:
            async with asyncio.timeout(timeout):
                await self._send(frames.HELLO, 0, {**settings, "bash": bare.hello(settings)})
                frame = await self._receive()
        except TimeoutError:
            raise SandboxFault(f"no hello from the action server within {timeout:g} s", code="start_timeout") from None
        except (ProtocolError, OSError, asyncio.IncompleteReadError) as error:
            raise SandboxFault(f"the action server did not start: {_text(error)}", code="start_failed") from error
        try:
            if frame.type == frames.FAULT:
                raise SandboxFault(_fault.decode(frame.payload).message, code="start_failed")
            hello = _hello.decode(frame.payload)
        except msgspec.MsgspecError as error:
            raise SandboxFault(f"the action server's hello makes no sense: {error}", code="protocol") from error
        if frame.type != frames.HELLO or hello.protocol != frames.PROTOCOL:
            raise SandboxFault("the action server speaks another protocol", code="protocol")
        if token and not secrets.compare_digest(hello.token.encode(), token.server.encode()):
            raise SandboxFault("what answered is not the action server: it does not know its token", code="protocol")
        self._bare = hello.server == "bash"
        self._task = asyncio.create_task(self._read(), name="sandbox-channel")
        return hello

    async def act(
        self,
        action: str,
        arguments: Mapping[str, Any],
        *,
        timeout: float,
        on_output: OnOutput | None = None,
        source: AsyncIterable[bytes] | None = None,
    ) -> ActionResult:
        """``source`` is sent to an action that takes input; what it raises is raised here."""
        if self._lost:
            raise SandboxFault(self._lost[0], code=self._lost[1])
        self._requests += 1
        request = self._requests
        pending = self._pending[request] = _Pending(on_output)
        pump: asyncio.Task[None] | None = None
        streams = on_output is not None or source is not None
        start: Mapping[str, Any] = {"action": action, "arguments": arguments, "timeout": timeout, "stream": streams}
        if self._bare:
            chars = arguments.get("output_chars", DEFAULT_OUTPUT_CHARS)
            pending.capture = Capture(max(0, chars) if isinstance(chars, int) else DEFAULT_OUTPUT_CHARS)
            start = {**arguments, "action": action, "timeout": timeout}
        try:
            async with asyncio.timeout(timeout + ANSWER_MARGIN):
                try:
                    await self._send(frames.START, request, start)
                except OSError as error:
                    raise self._fail(f"the connection to the sandbox broke: {_text(error)}") from error
                if source is not None:
                    pump = asyncio.create_task(self._pump(request, pending, source), name="sandbox-input")
                return await pending.future
        except TimeoutError:
            message = f"the action server did not end {action} within {timeout + ANSWER_MARGIN:g} s"
            raise self._fail(message, "no_answer") from None
        except (ProtocolError, UnicodeEncodeError) as error:
            return ActionResult(outcome="error", error=f"the request cannot be sent to the sandbox: {error}")
        finally:
            if pump:
                pump.cancel()
                await asyncio.wait([pump])
            del self._pending[request]
            if not pending.future.done() or pending.future.cancelled():
                self._abandon(request)
            elif not pending.future.cancelled():
                pending.future.exception()  # seen, so that asyncio does not report it

    async def _pump(self, request: int, pending: _Pending, source: AsyncIterable[bytes]) -> None:
        """Only as fast as the server takes it: its own back-pressure fills the socket, and the drain waits."""
        try:
            await pending.ready.wait()  # before that another action may be in its place
            async for data in source:
                self._writer.write(frames.pack(frames.INPUT, request, data))
                await self._writer.drain()
            self._writer.write(frames.pack(frames.INPUT, request))
        except Exception as error:
            if not pending.future.done():
                pending.future.set_exception(error)
                self._abandon(request)

    async def bye(self) -> None:
        """Ask the server to end everything and to exit. Actions under way fail as stopped."""
        self._writer.write(frames.pack(frames.BYE, 0))
        self._fail("the sandbox was stopped", "stopped")
        with contextlib.suppress(OSError):
            await self._writer.drain()

    async def ended(self) -> None:
        """Wait until the server has closed its end."""
        if self._task:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """Idempotent. Actions under way fail as lost."""
        self._fail("the sandbox was stopped", "stopped")
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def _abandon(self, request: int) -> None:
        """Nobody waits for this action any more: end it, and expect its end without an owner."""
        if not self._lost:
            self._abandoned.add(request)
            self._writer.write(frames.pack(frames.CANCEL, request))

    async def _send(self, kind: int, request: int, value: Mapping[str, Any] | None) -> None:
        payload = b"" if value is None else bare.assignments(value) if self._bare else _encoder.encode(value)
        self._writer.write(frames.pack(kind, request, payload))
        await self._writer.drain()

    async def _receive(self) -> Frame:
        header = await self._reader.readexactly(frames.HEADER.size)
        length, kind, request = frames.check_header(header)
        return Frame(kind, request, await self._reader.readexactly(length))

    async def _read(self) -> None:
        try:
            while True:
                await self._take(await self._receive())
        except asyncio.IncompleteReadError:
            self._fail("the action server is gone")
        except OSError as error:
            self._fail(f"the connection to the sandbox broke: {_text(error)}")
        except (ProtocolError, msgspec.MsgspecError, RecursionError) as error:
            self._fail(f"the sandbox broke the protocol: {error}", "protocol")
            self._writer.transport.abort()

    async def _take(self, frame: Frame) -> None:
        pending = self._pending.get(frame.request)
        if frame.type == frames.FAULT:
            raise ProtocolError(_fault.decode(frame.payload).message[:500])
        if frame.type == frames.END:
            result = _end.decode(frame.payload)
            if pending is None and frame.request not in self._abandoned:
                raise ProtocolError(f"an end for action {frame.request}, which is not under way")
            self._abandoned.discard(frame.request)
            if pending and not pending.future.done():
                if pending.capture:
                    result.output, result.truncated_bytes, _, _ = pending.capture.finish()
                pending.future.set_result(result)
        elif frame.type == frames.OUTPUT:
            if pending is None and frame.request not in self._abandoned:
                raise ProtocolError(f"output for action {frame.request}, which is not under way")
            if pending:
                pending.ready.set()
                if pending.capture:
                    pending.capture.add(frame.payload)
            if pending and pending.on_output and frame.payload and not pending.future.done():
                # Awaited here on purpose: a slow watcher slows the command down instead of filling memory.
                try:
                    await pending.on_output(frame.payload)
                except Exception as error:
                    pending.future.set_exception(error)
                    self._abandon(frame.request)
        else:
            raise ProtocolError(f"frame type {frame.type} is not the server's to send")

    def _fail(self, message: str, code: str = "sandbox_lost") -> SandboxFault:
        """The connection is of no more use: every caller hears of it, and so does who comes later."""
        if self._lost is None:
            self._lost = (message, code)
        for pending in self._pending.values():
            if not pending.future.done():
                pending.future.set_exception(SandboxFault(message, code=code))
        return SandboxFault(message, code=code)


def _text(error: BaseException) -> str:
    return "it went away" if isinstance(error, asyncio.IncompleteReadError) else f"{type(error).__name__}: {error}"
