"""uvicorn's HTTP protocol with a bound on what a request may send besides its body: request line, headers, trailers.

httptools collects them without one, before anybody was asked for a key.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD = 512 << 10  # bytes; what comes in one piece with a head may be the body's beginning, 256 KiB at the most


class BoundedHead(HttpToolsProtocol):
    """A connection that sends more is cut off."""

    _since_body = 0

    def data_received(self, data: bytes) -> None:
        self._since_body += len(data)
        if self._since_body > MAX_HEAD:
            self.transport.abort()
            return
        super().data_received(data)

    def on_message_begin(self) -> None:
        self._since_body = 0
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        self._since_body = 0
        super().on_body(body)
