"""A file from the package index, by pip's own settings, its hash checked while it comes. Nothing of it is run."""

from __future__ import annotations

import asyncio
import hashlib
import re
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import url2pathname

import httpx
import msgspec
from packaging.utils import canonicalize_name

from prorl.api.errors import SandboxFault, TaskFault
from prorl_swe.repository.pipsettings import PipSettings
from prorl_swe.rows.instance import SdistSource

ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
MAX_PAGE = 64 << 20
MAX_FILE = 1 << 30
ATTEMPTS = 3
PAUSE = 1.0


class Link(msgspec.Struct, frozen=True):
    """A file that an index offers."""

    filename: str
    url: str


class _File(msgspec.Struct):
    filename: str
    url: str


class _Page(msgspec.Struct):
    files: list[_File]


async def download(source: SdistSource, target: Path, settings: PipSettings) -> None:
    """Raises ``TaskFault`` (no such file, another hash, too large) and ``SandboxFault`` (``index_unreachable``)."""
    if not re.fullmatch(r"[0-9a-f]{64}", source.sha256):
        raise TaskFault(f"{source.filename} is not pinned: {source.sha256!r} is no SHA-256", code="sdist_hash")
    fault: Exception | None = None
    for attempt in range(ATTEMPTS):
        if attempt:
            await asyncio.sleep(PAUSE * 2**attempt)
        try:
            async with _client(settings) as client:
                return await _download(client, source, target, settings)
        except (httpx.HTTPError, OSError) as error:
            fault = error
    places = ", ".join(_without_credentials(place) for place in (*settings.find_links, *settings.indexes))
    raise SandboxFault(
        f"{source.filename} cannot be fetched from the package index: {_said(fault)} (asked, as pip is set to: "
        f"{places or 'no index'}; PIP_INDEX_URL says another)",
        code="index_unreachable",
    ) from fault


async def _download(client: httpx.AsyncClient, source: SdistSource, target: Path, settings: PipSettings) -> None:
    looked_at: list[str] = []
    for place in (*settings.find_links, *settings.indexes):
        looked_at.append(_without_credentials(place))
        base = place if place in settings.find_links else f"{place.rstrip('/')}/{canonicalize_name(source.project)}/"
        for link in await _links(client, base):
            if link.filename == source.filename:
                await _fetch(client, link, source.sha256, target)
                return
    where = ", ".join(looked_at) or "no index"
    what = f"there is no {source.filename} of {source.project} in the package index ({where})"
    raise TaskFault(what, code="sdist_missing")


async def _links(client: httpx.AsyncClient, place: str) -> list[Link]:
    """Those on a page of an index; none where there is no such page."""
    folder = _local(place)
    if folder is not None:
        return await asyncio.to_thread(_links_of_folder, folder)
    async with client.stream("GET", place, headers={"Accept": ACCEPT}) as response:
        if response.status_code in (404, 410):
            return []
        response.raise_for_status()
        content = bytearray()
        async for piece in response.aiter_bytes():
            content += piece
            if len(content) > MAX_PAGE:
                raise SandboxFault(f"the index's page is larger than {MAX_PAGE} bytes", code="index_page")
        if "json" in response.headers.get("Content-Type", ""):
            try:
                page = msgspec.json.decode(bytes(content), type=_Page)
            except msgspec.MsgspecError as error:
                raise SandboxFault(f"the package index does not speak its API: {error}", code="index_page") from error
            return [Link(file.filename, urljoin(str(response.url), file.url)) for file in page.files]
        return _links_of_page(bytes(content), str(response.url))


def _links_of_folder(folder: Path) -> list[Link]:
    """A folder of files, or one in the form of an index."""
    page = folder / "index.html"
    links = _links_of_page(page.read_bytes(), page.as_uri()) if page.is_file() else []
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return links + [Link(path.name, path.as_uri()) for path in files if path.is_file()]


def _links_of_page(content: bytes, url: str) -> list[Link]:
    anchors = _Anchors(url)
    anchors.feed(content.decode("utf-8", "replace"))
    anchors.close()
    return anchors.links


class _Anchors(HTMLParser):
    def __init__(self, url: str) -> None:
        super().__init__()
        self.links: list[Link] = []
        self._base = url

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href")
        if href and tag == "base":
            self._base = urljoin(self._base, href)
        elif href and tag == "a":
            url = urljoin(self._base, href)
            self.links.append(Link(unquote(urlsplit(url).path.rpartition("/")[2]), url))


async def _fetch(client: httpx.AsyncClient, link: Link, sha256: str, target: Path) -> None:
    digest, size = hashlib.sha256(), 0
    with target.open("wb") as file:
        async for piece in _content(client, link.url):
            size += len(piece)
            if size > MAX_FILE:
                raise TaskFault(f"{link.filename} is larger than {MAX_FILE} bytes", code="sdist_size")
            digest.update(piece)
            file.write(piece)
    if digest.hexdigest() != sha256:
        raise TaskFault(
            f"{link.filename} is not the file that the row names: its SHA-256 is {digest.hexdigest()}, not {sha256}",
            code="sdist_hash",
        )


async def _content(client: httpx.AsyncClient, url: str) -> AsyncIterator[bytes]:
    path = _local(url)
    if path is not None:
        for piece in _pieces(path):
            yield piece
        return
    async with client.stream("GET", url) as response:
        response.raise_for_status()
        async for piece in response.aiter_bytes():
            yield piece


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            yield piece


def _local(place: str) -> Path | None:
    parts = urlsplit(place)
    if parts.scheme == "file":
        return Path(url2pathname(parts.path))
    return Path(place) if parts.scheme == "" else None


@asynccontextmanager
async def _client(settings: PipSettings) -> AsyncIterator[httpx.AsyncClient]:
    verify: ssl.SSLContext | bool = True
    try:
        if settings.cert:
            verify = ssl.create_default_context(cafile=settings.cert)
            if settings.client_cert:
                verify.load_cert_chain(settings.client_cert)
    except OSError as error:
        raise SandboxFault(f"pip's cert cannot be read ({settings.cert}): {error}", code="index_settings") from error
    async with httpx.AsyncClient(
        verify=verify,
        proxy=settings.proxy,
        auth=httpx.NetRCAuth(settings.netrc) if settings.netrc else None,
        timeout=settings.timeout,
        follow_redirects=True,
    ) as client:
        yield client


def _without_credentials(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//", url)


def _said(error: Exception | None) -> str:
    return _without_credentials(str(error) or type(error).__name__)
