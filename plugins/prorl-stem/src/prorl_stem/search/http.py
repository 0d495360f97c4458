"""Backends that are one HTTP call: a request, and the hits in its reply. What may go wrong is the same for all.

Keys are read from the environment when a query is sent. They go into headers only, and no message quotes a reply.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar, TypeVar

import httpx
import msgspec

from prorl.api import ConfigError
from prorl_stem.search.backend import Hit, Refused, SearchFault
from prorl_stem.settings import SearchSettings

T = TypeVar("T")
MAX_REPLY_BYTES = 4_000_000
REFUSALS = frozenset({401, 402, 403, 432, 433})  # 432 and 433: Tavily's limits of a plan
UNREADABLE = "the search service's reply cannot be read"


class HttpBackend(ABC):
    """``url``: the whole address that is asked, unless the settings name another. ``key_env``: where its key is looked
    for, unless they name another; none when it needs no key."""

    name: ClassVar[str]
    summary: ClassVar[str]
    url: ClassVar[str | None] = None
    key_env: ClassVar[str | None] = None

    def __init__(self, settings: SearchSettings) -> None:
        address = settings.url or self.url
        if address is None:
            raise ConfigError(f"{self.name} has no address of its own: set handlers.stem.search.url")
        self._address = address
        self._key_env = settings.api_key_env or self.key_env
        self._timeout_s = settings.timeout_s
        self._trust: ssl.SSLContext | None = None

    @abstractmethod
    def request(self, query: str, limit: int, key: str) -> httpx.Request: ...

    @abstractmethod
    def hits(self, body: bytes) -> list[Hit]:
        """The hits in a reply; raises ``msgspec.DecodeError`` or ``ValueError`` for one that is none."""

    def refused(self, status: int, body: bytes) -> str | None:
        """Why no query can succeed, if this reply says so."""
        if status in REFUSALS:
            return f"it answers HTTP {status}" + (f": look at ${self._key_env}" if self._key_env else "")
        return None

    async def search(self, query: str, limit: int) -> list[Hit]:
        request = self.request(query, limit, self._key())
        if self._trust is None:
            self._trust = httpx.create_ssl_context()
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                httpx.AsyncClient(timeout=None, verify=self._trust) as client,  # noqa: S113 - the line above
            ):
                response = await client.send(request, stream=True)
                body = await read_at_most(response, MAX_REPLY_BYTES)
        except TimeoutError:
            raise SearchFault("the search service did not answer in time", again=True) from None
        except httpx.HTTPError as error:
            raise SearchFault(f"the search service cannot be reached ({type(error).__name__})", again=True) from None
        self._check(response, body)
        try:
            found = self.hits(body)
        except (msgspec.DecodeError, msgspec.ValidationError, ValueError, RecursionError):
            raise SearchFault(UNREADABLE, again=True) from None
        return [hit for hit in found if hit.url.startswith(("http://", "https://"))][:limit]

    def _key(self) -> str:
        if self._key_env is None:
            return ""
        key = os.environ.get(self._key_env, "").strip()
        if not key:
            raise Refused(f"{self.name} needs a key: set ${self._key_env} where the server runs")
        if not key.isascii() or not key.isprintable():
            raise Refused(f"the key in ${self._key_env} cannot stand in a header")
        return key

    def _check(self, response: httpx.Response, body: bytes) -> None:
        status = response.status_code
        if status == 200:
            return
        if why := self.refused(status, body):
            raise Refused(f"{self.name} refuses to search: {why}")
        if status in (202, 408, 425, 429) or status >= 500:
            after = retry_after(response.headers.get("retry-after"))
            raise SearchFault(f"the search service is busy (HTTP {status})", again=True, after=after)
        raise SearchFault(f"the search service does not take this query (HTTP {status})")


async def read_at_most(response: httpx.Response, limit: int) -> bytes:
    """The body; raises :class:`SearchFault` for one that is longer."""
    parts = bytearray()
    try:
        async for part in response.aiter_bytes():
            parts += part
            if len(parts) > limit:
                raise SearchFault(f"the search service's reply has more than {limit} bytes")
    finally:
        await response.aclose()
    return bytes(parts)


def retry_after(value: str | None) -> float | None:
    """Seconds, from either form of the header."""
    if value is None:
        return None
    if value.strip().isdigit():
        return float(value.strip()[:9])
    try:
        then = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, (then - datetime.now(UTC)).total_seconds()) if then.tzinfo is not None else None


def decode(body: bytes, kind: type[T]) -> T:
    return msgspec.json.decode(body, type=kind)


def joined(parts: Any) -> str:
    """A list of texts as one; anything else as nothing."""
    return " ... ".join(part for part in parts if isinstance(part, str)) if isinstance(parts, list) else ""
