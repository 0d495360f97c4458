"""Pages of the web as text, for all jobs: cached, paced, asked again when that may help."""

from __future__ import annotations

import codecs
from collections.abc import Callable

import msgspec

from prorl.api import GraderFault
from prorl.grading import GraderPool
from prorl_stem.patience import persist
from prorl_stem.search.keep import Cache, Pace
from prorl_stem.settings import PageSettings
from prorl_stem.web.addresses import Address, Resolver, is_public, system_resolver
from prorl_stem.web.download import Download, Downloader
from prorl_stem.web.faults import PageFault

EXTRACTOR = "prorl_stem.web.text:extract"
EXTRACT_S = 20.0
KEEP_S = 3600.0


class Page(msgspec.Struct, frozen=True):
    url: str
    title: str
    text: str


class Pages:
    """``resolve`` and ``allowed`` stand for the net: tests give their own. Use it on one event loop, and close it."""

    def __init__(
        self,
        settings: PageSettings,
        *,
        resolve: Resolver = system_resolver,
        allowed: Callable[[Address], bool] = is_public,
    ) -> None:
        self._settings = settings
        self._downloader = Downloader(
            resolve=resolve,
            allowed=allowed,
            ports=settings.ports,
            max_bytes=settings.max_bytes,
            redirects=settings.redirects,
            timeout_s=settings.timeout_s,
        )
        self._pace = Pace(settings.per_second)
        self._cache: Cache[Page] = Cache(settings.cache_chars, KEEP_S, lambda page: len(page.text) + 1000)
        self._extractors: GraderPool | None = None

    async def page(self, url: str, blocked: Callable[[str], bool]) -> Page:
        """Raises :class:`PageFault`. ``blocked`` is asked about every URL on the way; it must be the same for all."""
        url = self._downloader.place(url).url
        if blocked(url):
            raise PageFault("this site is blocked")
        return await self._cache.get(url, lambda: self._fetch(url, blocked))

    async def _fetch(self, url: str, blocked: Callable[[str], bool]) -> Page:
        async def ask() -> Download:
            await self._pace.turn()
            return await self._downloader.get(url, blocked)

        return await self._text(await persist(ask, self._settings.retries))

    async def _text(self, download: Download) -> Page:
        if self._extractors is None:
            self._extractors = GraderPool(EXTRACTOR, size=1)
        body = decoded(download)
        payload = {"body": body, "content_type": download.content_type, "url": download.url}
        try:
            found = await self._extractors.grade(payload, EXTRACT_S)
        except GraderFault as fault:
            raise PageFault(f"its text cannot be extracted ({fault.code})") from fault
        return Page(download.url, found["title"], found["text"])

    async def close(self) -> None:
        await self._cache.close()
        if self._extractors is not None:
            await self._extractors.close()


def decoded(download: Download) -> str:
    """By the charset that was declared, else UTF-8; what does not fit becomes a replacement sign."""
    charset = download.charset or "utf-8"
    try:
        codecs.lookup(charset)
        text = download.body.decode(charset, errors="replace")
    except (LookupError, ValueError):
        text = download.body.decode("utf-8", errors="replace")
    return text.replace("\x00", "")
