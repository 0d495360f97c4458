"""One page's bytes, by http or https, from a public address, at most so many, after at most so many redirects.

Every hop is checked as the first one was. The connection is made to the checked address itself, with the name in the
Host header and in TLS, so that no second look-up stands between the check and the use. Proxies from the environment are
not used: they would look names up themselves.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

import httpx

from prorl_stem.search.http import retry_after
from prorl_stem.web.addresses import Address, Resolver, checked
from prorl_stem.web.faults import PageFault

READABLE = ("text/html", "application/xhtml+xml", "text/plain", "text/markdown", "application/json", "text/xml",
            "application/xml", "text/csv")  # fmt: skip
REDIRECTS = frozenset({301, 302, 303, 307, 308})
DEFAULT_PORTS = {"http": 80, "https": 443}
MAX_URL_CHARS = 4000
HEADERS = {
    "User-Agent": "prorl-stem (research; text only)",
    "Accept": "text/html,application/xhtml+xml,text/plain;q=0.9,application/json;q=0.8",
    "Accept-Encoding": "identity",  # a small reply must not become a large one
}


@dataclass(frozen=True)
class Download:
    url: str
    content_type: str
    charset: str | None
    body: bytes


@dataclass(frozen=True)
class Place:
    """A URL that may be asked."""

    url: str
    scheme: str
    host: str
    port: int
    target: str


class Downloader:
    """``resolve`` and ``allowed`` stand for the net: tests give their own."""

    def __init__(
        self,
        *,
        resolve: Resolver,
        allowed: Callable[[Address], bool],
        ports: tuple[int, ...],
        max_bytes: int,
        redirects: int,
        timeout_s: float,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self._resolve = resolve
        self._allowed = allowed
        self._ports = ports
        self._max_bytes = max_bytes
        self._redirects = redirects
        self._timeout_s = timeout_s
        self._trust = trust

    async def get(self, url: str, blocked: Callable[[str], bool]) -> Download:
        """Raises :class:`PageFault`. ``blocked`` is asked about every hop's URL. ``timeout_s`` is for all of it, so a
        server that sends a byte now and then gains nothing."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._follow(url, blocked)
        except TimeoutError:
            raise PageFault("it did not answer in time", again=True) from None

    async def _follow(self, url: str, blocked: Callable[[str], bool]) -> Download:
        for _ in range(self._redirects + 1):
            place = self.place(url)
            if blocked(place.url):
                raise PageFault("this site is blocked")
            addresses = await checked(place.host, place.port, self._resolve, self._allowed)
            found = await self._ask(place, addresses[0])
            if isinstance(found, Download):
                return found
            url = urljoin(place.url, found)
        raise PageFault(f"it redirects more than {self._redirects} times")

    def place(self, url: str) -> Place:
        """The parts of a URL that may be asked; raises :class:`PageFault` for any other."""
        if len(url) > MAX_URL_CHARS or not url.isprintable() or " " in url.strip():
            raise PageFault("its address is not a URL")
        try:
            parts = urlsplit(url.strip())
            port = parts.port
            host = parts.hostname
        except ValueError:
            raise PageFault("its address is not a URL") from None
        if parts.scheme not in DEFAULT_PORTS:
            raise PageFault("only http and https can be fetched")
        if not host or parts.username is not None or parts.password is not None or "\\" in url:
            raise PageFault("its address is not a URL")
        port = DEFAULT_PORTS[parts.scheme] if port is None else port
        if port not in self._ports:
            raise PageFault(f"port {port} may not be used")
        try:
            host = host if ":" in host or host.isascii() else host.encode("idna").decode()
        except UnicodeError:
            raise PageFault("its address is not a URL") from None
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        shown = f"[{host}]" if ":" in host else host
        authority = shown if port == DEFAULT_PORTS[parts.scheme] else f"{shown}:{port}"
        return Place(f"{parts.scheme}://{authority}{target}", parts.scheme, host, port, target)

    async def _ask(self, place: Place, address: Address) -> Download | str:
        """The page, or where it redirects to."""
        to = f"[{address}]" if address.version == 6 else str(address)
        authority = place.url.split("/", 3)[2]
        request = httpx.Request(
            "GET",
            f"{place.scheme}://{to}:{place.port}{place.target}",
            headers={"Host": authority, **HEADERS},
            extensions={"sni_hostname": place.host},
        )
        if self._trust is None:
            self._trust = httpx.create_ssl_context()
        try:
            async with httpx.AsyncHTTPTransport(verify=self._trust, trust_env=False) as transport:
                response = await transport.handle_async_request(request)
                try:
                    return await self._read(place, response)
                finally:
                    await response.aclose()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise PageFault(f"it cannot be reached ({type(error).__name__})", again=True) from None

    async def _read(self, place: Place, response: httpx.Response) -> Download | str:
        status = response.status_code
        if status in REDIRECTS:
            location = response.headers.get("location", "")
            if not location:
                raise PageFault(f"it answers HTTP {status} without saying where to go")
            return str(location)
        if status != 200:
            again = status in (408, 425, 429) or status >= 500
            raise PageFault(
                f"it answers HTTP {status}", again=again, after=retry_after(response.headers.get("retry-after"))
            )
        content_type, _, parameters = response.headers.get("content-type", "text/html").lower().partition(";")
        content_type = content_type.strip()
        if content_type not in READABLE:
            raise PageFault(f"it is {content_type[:80]!r}, not text")
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise PageFault("it is compressed, which was not asked for")
        body = bytearray()
        assert isinstance(response.stream, httpx.AsyncByteStream)  # noqa: S101 - what an async transport returns
        async for part in response.stream:
            body += part
            if len(body) > self._max_bytes:
                raise PageFault(f"it has more than {self._max_bytes} bytes")
        _, _, charset = parameters.partition("charset=")
        return Download(place.url, content_type, charset.split(";")[0].strip(" \"'") or None, bytes(body))
