"""One connection per call in flight, under httpx's own interface.

httpx's pool looks at every connection whenever a call begins or ends: at 256 calls in flight that is most of a client's
CPU time. Here each call takes a pool of its own with a single connection, the one used last first, so that a call costs
the same however many others there are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import httpx


class Lanes(httpx.AsyncBaseTransport):
    """``make`` builds a transport for one connection. Bounding the calls in flight is the caller's business."""

    def __init__(self, make: Callable[[], httpx.AsyncBaseTransport]) -> None:
        self._make = make
        self._free: list[httpx.AsyncBaseTransport] = []
        self._all: list[httpx.AsyncBaseTransport] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        lane = self._free.pop() if self._free else self._add()
        try:
            response = await lane.handle_async_request(request)
        except BaseException:
            self._free.append(lane)
            raise
        stream = response.stream
        assert isinstance(stream, httpx.AsyncByteStream)  # noqa: S101 - what an async transport returns
        response.stream = _LaneStream(stream, lambda: self._free.append(lane))
        return response

    async def aclose(self) -> None:
        for lane in self._all:
            await lane.aclose()

    def _add(self) -> httpx.AsyncBaseTransport:
        lane = self._make()
        self._all.append(lane)
        return lane


class _LaneStream(httpx.AsyncByteStream):
    """A body whose end frees its lane."""

    def __init__(self, stream: httpx.AsyncByteStream, free: Callable[[], None]) -> None:
        self._stream = stream
        self._free = free
        self._open = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            if self._open:
                self._open = False
                self._free()
