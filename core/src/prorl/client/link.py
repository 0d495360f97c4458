"""One server's HTTP: requests out, typed answers or :class:`ServiceError` in.

The number of rollouts in flight is bounded *before* httpx; short calls are not bounded, and never wait behind them.
"""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import time
from collections.abc import Mapping
from typing import TypeVar

import httpx
import msgspec

from prorl.client.errors import ServerUnreachable, ServiceError
from prorl.net.lanes import Lanes
from prorl.wire.service import Problem

T = TypeVar("T")

# Long calls carry no bytes for minutes: without this a vanished host is never noticed.
_KEEP_ALIVE = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)] + [
    (socket.IPPROTO_TCP, getattr(socket, option), value)
    for option, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
    if hasattr(socket, option)
]
_IDLE_S = 30.0  # shorter than any server's keep-alive: the side that sends must be the one that closes


class Link:
    def __init__(self, url: str, *, concurrency: int, timeout_s: float, transport: httpx.AsyncBaseTransport | None):
        self.url = url.rstrip("/")
        self.slots = asyncio.Semaphore(concurrency)
        self._timeout_s = timeout_s
        self.http = httpx.AsyncClient(
            base_url=self.url,
            timeout=httpx.Timeout(timeout_s),
            # A cluster's proxy settings are for the world outside; rollout servers are inside.
            trust_env=False,
            transport=transport or _lanes(),
        )

    async def call(
        self,
        method: str,
        path: str,
        answer: type[T],
        *,
        body: msgspec.Struct | None = None,
        read_s: float | None = None,
    ) -> T:
        """One try. ``read_s`` replaces the time limit on the answer. Raises ``ServiceError`` and httpx's own errors."""
        content = None if body is None else msgspec.json.encode(body)
        timeout = httpx.Timeout(self._timeout_s, read=read_s) if read_s is not None else self.http.timeout
        headers = {"content-type": "application/json"} if content is not None else None
        response = await self.http.request(method, path, content=content, headers=headers, timeout=timeout)
        if response.is_error:
            raise service_error(response.status_code, response.content, response.headers)
        return _decode(response, answer)

    async def insist(
        self, method: str, path: str, answer: type[T], *, body: msgspec.Struct | None = None, give_up_s: float
    ) -> T:
        """``call``, again while nobody answers, for calls that may be repeated. Raises ``ServerUnreachable``."""
        patience = Patience(self.url, give_up_s)
        while True:
            try:
                return await self.call(method, path, answer, body=body)
            except httpx.TransportError as error:
                await patience.spend(error)


def _lanes() -> Lanes:
    trust = ssl.create_default_context()  # once: making one takes longer than a call
    limits = httpx.Limits(max_connections=1, keepalive_expiry=_IDLE_S)
    return Lanes(
        lambda: httpx.AsyncHTTPTransport(verify=trust, limits=limits, socket_options=_KEEP_ALIVE, trust_env=False)
    )


class Patience:
    """How long to go on trying without contact: growing pauses with jitter, so that many clients do not march."""

    def __init__(self, url: str, give_up_s: float) -> None:
        self._url = url
        self._give_up_s = give_up_s
        self.renew()

    def renew(self) -> None:
        """There was contact."""
        self._since = time.monotonic()
        self._pause_s = 0.1

    async def spend(self, error: httpx.TransportError | ServiceError) -> None:
        """Sleep before the next try. When time is up raise ``ServerUnreachable``, or the server's own last word."""
        tried_s = time.monotonic() - self._since
        if tried_s >= self._give_up_s:
            if isinstance(error, ServiceError):
                raise error
            raise ServerUnreachable(self._url, str(error) or type(error).__name__, tried_s=tried_s) from error
        asked_s = error.retry_after_s or 0.0 if isinstance(error, ServiceError) else 0.0
        pause_s = max(self._pause_s, asked_s) * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
        await asyncio.sleep(min(pause_s, self._give_up_s - tried_s))
        self._pause_s = min(2.0, self._pause_s * 2)


def service_error(status: int, content: bytes, headers: Mapping[str, str]) -> ServiceError:
    """The server's problem details, or the same made from whatever a proxy in between has answered."""
    try:
        problem = msgspec.json.decode(content, type=Problem)
    except msgspec.DecodeError:
        said = " ".join(content[:300].decode("utf-8", "replace").split())
        problem = Problem(title="The answer is not from a rollout server", status=status, detail=said or "empty body")
    try:
        retry_after_s: float | None = max(0.0, float(headers["retry-after"]))
    except (KeyError, ValueError):
        retry_after_s = None
    return ServiceError(problem, retry_after_s=retry_after_s)


def _decode(response: httpx.Response, answer: type[T]) -> T:
    try:
        decoded = msgspec.json.decode(response.content, type=answer)
    except msgspec.DecodeError as error:
        detail = f"{response.request.method} {response.request.url.path}: {error}; is the server's version another one?"
        raise ServiceError(
            Problem(title="The answer cannot be read", status=response.status_code, detail=detail)
        ) from error
    return decoded
