"""One server's HTTP: requests out, typed answers or :class:`ServiceError` in.

The number of rollouts in flight is bounded *before* httpx; short calls are not bounded, and never wait behind them.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import socket
import ssl
import time
from collections.abc import Mapping
from typing import TypeVar

import httpx
import msgspec

from prorl.client.errors import BadAddress, NotARolloutServer, ServerUnreachable, ServiceError
from prorl.net.lanes import Lanes
from prorl.wire.service import Problem

T = TypeVar("T")
log = logging.getLogger("prorl.client")

# Long calls carry no bytes for minutes: without this a vanished host is never noticed.
_KEEP_ALIVE = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)] + [
    (socket.IPPROTO_TCP, getattr(socket, option), value)
    for option, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
    if hasattr(socket, option)
]
_TAG = re.compile(rb"<(style|script).*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)
_OF_PROXIES = (408, 413, 429)  # said by what stands in between, of one request
_IDLE_S = 30.0  # shorter than any server's keep-alive: the side that sends must be the one that closes


class Link:
    def __init__(self, url: str, *, concurrency: int, timeout_s: float, transport: httpx.AsyncBaseTransport | None):
        self.url = _checked(url).rstrip("/")
        self.slots = asyncio.Semaphore(concurrency)
        self._lost = False
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
        self.found()
        if response.is_error:
            raise self.refusal(response.status_code, response.content, response.headers)
        return self._decode(response, answer)

    async def once(
        self,
        method: str,
        path: str,
        answer: type[T],
        *,
        body: msgspec.Struct | None = None,
        read_s: float | None = None,
    ) -> T:
        """``call`` for calls that must not or need not be repeated. Raises ``ServerUnreachable``."""
        try:
            return await self.call(method, path, answer, body=body, read_s=read_s)
        except httpx.TransportError as error:
            raise ServerUnreachable(self.url, str(error) or type(error).__name__, tried_s=0.0) from error

    async def insist(
        self, method: str, path: str, answer: type[T], *, body: msgspec.Struct | None = None, give_up_s: float
    ) -> T:
        """``call``, again while nobody answers, for calls that may be repeated. Raises ``ServerUnreachable``."""
        patience = Patience(self, give_up_s)
        while True:
            try:
                return await self.call(method, path, answer, body=body)
            except httpx.TransportError as error:
                await patience.spend(error)

    def lost(self, cause: str, *, give_up_s: float) -> None:
        """Somebody begins to wait for the server: said once, however many wait, until it answers again."""
        if not self._lost:
            self._lost = True
            log.warning("no answer from %s (%s): trying again, for up to %.0f s", self.url, cause, give_up_s)

    def found(self) -> None:
        if self._lost:
            self._lost = False
            log.warning("%s answers again", self.url)

    def refusal(self, status: int, content: bytes, headers: Mapping[str, str]) -> ServiceError | NotARolloutServer:
        """The server's problem details. What a proxy in between says is made into the same."""
        said = " ".join(_TAG.sub(b" ", content[:2000]).decode("utf-8", "replace").split())[:80]
        try:
            problem = msgspec.json.decode(content, type=Problem)
        except msgspec.DecodeError:
            if (status < 500 and status not in _OF_PROXIES) or status == httpx.codes.NOT_IMPLEMENTED:
                return NotARolloutServer(self.url, f"{status}: {said or 'no text'}")
            problem = Problem(title="The answer is not from a rollout server", status=status, detail=said or "no text")
        try:
            retry_after_s: float | None = max(0.0, float(headers["retry-after"]))
        except (KeyError, ValueError):
            retry_after_s = None
        return ServiceError(problem, retry_after_s=retry_after_s)

    def _decode(self, response: httpx.Response, answer: type[T]) -> T:
        try:
            return msgspec.json.decode(response.content, type=answer)
        except msgspec.DecodeError as error:
            kind = response.headers.get("content-type", "text").partition(";")[0]
            if "json" not in kind:
                raise NotARolloutServer(self.url, f"it sent {kind} instead of JSON") from error
            detail = f"{response.request.method} {response.request.url.path}: {error}; is the server's version another?"
            raise ServiceError(
                Problem(title="The answer cannot be read", status=response.status_code, detail=detail)
            ) from error


def _checked(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise BadAddress(url) from error
    if parsed.scheme not in ("http", "https") or not parsed.host or not 0 < (parsed.port or 1) < 65_536:
        raise BadAddress(url)
    return url


def _lanes() -> Lanes:
    trust = ssl.create_default_context()  # once: making one takes longer than a call
    limits = httpx.Limits(max_connections=1, keepalive_expiry=_IDLE_S)
    return Lanes(
        lambda: httpx.AsyncHTTPTransport(verify=trust, limits=limits, socket_options=_KEEP_ALIVE, trust_env=False)
    )


class Patience:
    """How long to go on trying without contact: growing pauses with jitter, so that many clients do not march."""

    def __init__(self, link: Link, give_up_s: float) -> None:
        self._link = link
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
            raise ServerUnreachable(self._link.url, str(error) or type(error).__name__, tried_s=tried_s) from error
        if isinstance(error, httpx.TransportError):
            self._link.lost(str(error) or type(error).__name__, give_up_s=self._give_up_s)
        await self._pause(error.retry_after_s or 0.0 if isinstance(error, ServiceError) else 0.0)

    async def allows(self) -> bool:
        """Sleep before the next try; false when time is up."""
        if time.monotonic() - self._since >= self._give_up_s:
            return False
        await self._pause(0.0)
        return True

    async def _pause(self, asked_s: float) -> None:
        left_s = self._give_up_s - (time.monotonic() - self._since)
        pause_s = max(self._pause_s, asked_s) * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
        await asyncio.sleep(max(0.0, min(pause_s, left_s)))
        self._pause_s = min(2.0, self._pause_s * 2)
