"""One connection per call in flight, under httpx's own interface.

httpx's pool looks at every connection whenever a call begins or ends: at 256 calls in flight that is most of a client's
CPU time. Here each call takes a pool of its own with a single connection, the one used last first, so that a call costs
the same however many others there are.

A lane is used again only after a whole response. One whose call was cancelled or broken off may be left with a
connection that httpx believes busy for ever, and whoever took it next would wait for as long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import httpx


class Lanes(httpx.AsyncBaseTransport):
    """``make`` builds a transport for one connection. Bounding the calls in flight is the caller's business."""

    def __init__(self, make: Callable[[], httpx.AsyncBaseTransport]) -> None:
        self._make = make
        self._free: list[httpx.AsyncBaseTransport] = []
        self._all: set[httpx.AsyncBaseTransport] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        lane = self._free.pop() if self._free else self._add()
        try:
            response = await lane.handle_async_request(request)
        except BaseException:
            self._drop(lane)
            raise
        if self._closed:
            # Closed while this call was connecting, so that its lane had no connection to close yet. An answer that is
            # given up unread closes it.
            await response.aclose()
            self._drop(lane)
            raise httpx.ReadError("the client was closed", request=request)
        stream = response.stream
        assert isinstance(stream, httpx.AsyncByteStream)  # noqa: S101 - what an async transport returns
        response.stream = _LaneStream(stream, lambda whole: self._free.append(lane) if whole else self._drop(lane))
        return response

    async def aclose(self) -> None:
        """Calls under way end with an error."""
        self._closed = True
        for lane in list(self._all):
            await lane.aclose()
        if self._closing:
            await asyncio.wait(self._closing)

    def _add(self) -> httpx.AsyncBaseTransport:
        lane = self._make()
        self._all.add(lane)
        return lane

    def _drop(self, lane: httpx.AsyncBaseTransport) -> None:
        """Close it in the background: the caller may be cancelled, and the engine stops when the connection closes."""
        self._all.discard(lane)
        closing = asyncio.get_running_loop().create_task(lane.aclose())
        self._closing.add(closing)
        closing.add_done_callback(self._dropped)

    def _dropped(self, closing: asyncio.Task[None]) -> None:
        self._closing.discard(closing)
        if not closing.cancelled():
            closing.exception()  # read here: a connection that breaks while it is closed is closed all the same


class _LaneStream(httpx.AsyncByteStream):
    """A body whose end gives its lane back: ``done(whole)``, once."""

    def __init__(self, stream: httpx.AsyncByteStream, done: Callable[[bool], None]) -> None:
        self._stream = stream
        self._done = done
        self._open = True
        self._whole = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part
        self._whole = True

    async def aclose(self) -> None:
        closed = False
        try:
            await self._stream.aclose()
            closed = True
        finally:
            if self._open:
                self._open = False
                self._done(self._whole and closed)
