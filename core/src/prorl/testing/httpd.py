"""A minimal HTTP/1.1 server in a thread of its own, for engines that play a part in tests and demos.

Small enough to misbehave on purpose, and it notices at once when a client goes away: the handler is then cancelled, as
an engine's request is.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

T = TypeVar("T")
_REASONS = {
    200: "OK",
    307: "Temporary Redirect",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    500: "Internal Server Error",
}


async def stop_listening(server: asyncio.Server) -> None:
    """Close a server so that no socket it accepted is forgotten open: those become connections first. A ``Server``
    closed while it accepts drops them unclosed (python/cpython#109564)."""
    for each in server.sockets:
        server.get_loop().remove_reader(each.fileno())
    await _turns()
    server.close()


async def _turns() -> None:
    """Let the loop take what is under way to its end: accept, connect, start; or abort, close."""
    for _ in range(4):
        await asyncio.sleep(0)


class Request(msgspec.Struct, kw_only=True):
    method: str
    path: str
    query: str
    body: bytes
    headers: dict[str, str] = {}


class Response(msgspec.Struct, kw_only=True):
    """``declared`` is the Content-Length said, when another than the body's is to be said; ``location`` where a
    redirect leads."""

    body: bytes = b""
    status: int = 200
    declared: int | None = None
    location: str | None = None


def json_response(content: Any, status: int = 200) -> Response:
    return Response(body=msgspec.json.encode(content), status=status)


def error_response(status: int, message: str) -> Response:
    """An error as vLLM and many others write it."""
    return json_response({"error": {"message": message, "type": "Error", "param": None, "code": status}}, status)


class HttpServer(ABC):
    """``with server: server.url`` or ``async with``. ``stop`` cuts every connection; ``start`` listens on the same port
    again, as a server that comes back does."""

    def __init__(self) -> None:
        self.url = ""
        self._port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def handle(self, request: Request) -> Response | None:
        """Answer; ``None`` closes the connection without a word."""

    async def opened(self) -> None:  # noqa: B027 - optional by design
        """On the server's loop, before the first request."""

    async def closing(self) -> None:  # noqa: B027 - optional by design
        """On the server's loop, after the last request."""

    def start(self) -> None:
        if self._thread is not None:
            return
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name=type(self).__name__, daemon=True)
        self._thread.start()
        started.result()

    def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            thread.join()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run on the server's loop and wait."""
        if self._loop is None:
            coroutine.close()
            raise RuntimeError("the server is not running")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    def _run(self, started: Future[None]) -> None:
        asyncio.run(self._serve(started))

    async def _serve(self, started: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        try:
            await self.opened()
            self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port, backlog=1024)
            self._port = self._server.sockets[0].getsockname()[1]
            self.url = f"http://127.0.0.1:{self._port}"
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(None)
        await self._stopping.wait()
        await stop_listening(self._server)
        for connection in self._connections:
            connection.cancel()
        if self._connections:
            await asyncio.wait(self._connections)
        await _turns()  # and what was aborted closes its socket
        await self.closing()
        self._loop = None

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Not a coroutine: one that is cancelled before its first step runs none of its own clean-up."""
        task = asyncio.get_running_loop().create_task(self._until_over(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _until_over(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):  # the client went away
            await self._converse(reader, writer)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.readexactly(1)
        while True:
            head = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, target, _ = head[0].split(" ", 2)
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            path, _, query = target.partition("?")
            work = asyncio.ensure_future(
                self.handle(Request(method=method, path=path, query=query, body=body, headers=headers))
            )
            # a client sends nothing while it waits, so a byte is its next request and the end is its leaving
            beyond = asyncio.ensure_future(reader.read(1))
            try:
                await asyncio.wait({work, beyond}, return_when=asyncio.FIRST_COMPLETED)
                if not work.done() and not beyond.result():
                    return
                response = await work
                if response is None:
                    return
                reason = _REASONS.get(response.status, "Other")
                length = len(response.body) if response.declared is None else response.declared
                location = "" if response.location is None else f"location: {response.location}\r\n"
                writer.write(
                    f"HTTP/1.1 {response.status} {reason}\r\ncontent-type: application/json\r\n"
                    f"{location}content-length: {length}\r\n\r\n".encode()
                    + response.body
                )
                await writer.drain()
                if response.declared is not None:
                    return
                first = await beyond
                if not first:
                    return
            finally:
                for task in (work, beyond):
                    task.cancel()
                    with suppress(asyncio.CancelledError, ConnectionError):
                        await task
