"""A load generator in a process of its own: keep-alive connections that send one prepared request again and again.

Bare asyncio protocols, so that the generator costs less than what it measures. Prints one JSON line per round.

    python load.py PORT CONCURRENCY < rounds      rounds: JSON lines {"path", "body", "count"}
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import cast

import uvloop


class Connection(asyncio.Protocol):
    """Sends, waits for the whole answer, sends again, until the round has handed out all its requests."""

    def __init__(self, round_: Round) -> None:
        self._round = round_
        self._buffer = b""
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name
        self._next()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, gap, rest = self._buffer.partition(b"\r\n\r\n")
        if not gap:
            return
        at = head.lower().index(b"content-length:") + 15
        if len(rest) < int(head[at:].split(b"\r\n", 1)[0]):
            return
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"not 200: {head!r} {rest[:500]!r}")
        self._buffer = b""
        self._round.took(time.perf_counter() - self._sent, len(rest))
        self._next()

    def _next(self) -> None:
        if self._round.left == 0:
            self._transport.close()
            return
        self._round.left -= 1
        self._sent = time.perf_counter()
        self._transport.write(self._round.request)

    def connection_lost(self, exc: Exception | None) -> None:
        self._round.closed(exc)


class Round:
    def __init__(self, path: str, body: str, count: int, concurrency: int) -> None:
        raw = body.encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
        )
        self.request = head.encode() + raw
        self.left = self.count = count
        self.open = concurrency
        self.bytes = 0
        self.seconds: list[float] = []
        self.done = asyncio.get_running_loop().create_future()

    def took(self, seconds: float, size: int) -> None:
        self.seconds.append(seconds)
        self.bytes += size

    def closed(self, error: Exception | None) -> None:
        self.open -= 1
        if error is not None and not self.done.done():
            self.done.set_exception(error)
        if self.open == 0 and not self.done.done():
            self.done.set_result(None)


async def main(port: int, concurrency: int) -> None:
    loop = asyncio.get_running_loop()
    for line in sys.stdin:
        asked = json.loads(line)
        round_ = Round(asked["path"], asked["body"], asked["count"], concurrency)
        began = time.perf_counter()
        for _ in range(concurrency):
            await loop.create_connection(lambda: Connection(round_), "127.0.0.1", port)  # noqa: B023 - used at once
        await round_.done
        elapsed = time.perf_counter() - began
        latencies = sorted(round_.seconds)
        answer = {
            "rate": round_.count / elapsed,
            "p50_ms": latencies[len(latencies) // 2] * 1000,
            "p99_ms": latencies[int(len(latencies) * 0.99)] * 1000,
            "answer_bytes": round_.bytes / round_.count,
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2])))
