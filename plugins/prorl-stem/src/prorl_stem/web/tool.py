"""``fetch``: a document of the offline index, or a page of the web, as text, a piece at a time."""

from __future__ import annotations

import asyncio
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from prorl.api import ConfigError, Observation, TaskFault, ToolContext
from prorl.tools.base import StructTool
from prorl_stem.search.leaks import Guard
from prorl_stem.search.offline import Offline
from prorl_stem.settings import PageSettings, SearchSettings
from prorl_stem.web.faults import PageFault
from prorl_stem.web.pages import Page, Pages

SCHEME = "offline://"


class FetchArguments(msgspec.Struct, forbid_unknown_fields=True):
    url: Annotated[str, Meta(description="The address of a document, as search returns it.")]
    start: Annotated[int, Meta(ge=0, description="The character to begin at, to read on in a long document.")] = 0


class Fetch(StructTool[FetchArguments]):
    """Without ``pages`` only documents of the offline index can be read: what every other domain gets."""

    name = "fetch"
    aliases = ("fetch_url", "browse", "open_url")
    synonyms: ClassVar = {"link": "url", "address": "url", "offset": "start"}
    description = "Read the text of a document or web page."
    arguments = FetchArguments

    def __init__(
        self,
        pages: Pages | None = None,
        library: Offline | None = None,
        guard: Guard | None = None,
        settings: PageSettings | None = None,
    ) -> None:
        self._pages = pages
        self._library = library or Offline(SearchSettings())
        self._guard = guard or Guard("", SearchSettings().block_domains)
        self._settings = settings or PageSettings()

    async def run(self, arguments: FetchArguments, context: ToolContext) -> Observation:
        """Raises ``TaskFault`` when the index cannot be read."""
        try:
            async with asyncio.timeout(context.timeout):
                page = await self._page(arguments.url.strip())
        except TimeoutError:
            return Observation(text="Error: the page took too long.", is_error=True)
        except PageFault as fault:
            return Observation(text=f"Error: the page cannot be read: {fault}.", is_error=True)
        except ConfigError as error:
            raise TaskFault(str(error), code="search_refused") from error
        return self._piece(page, arguments.start)

    async def _page(self, url: str) -> Page:
        if url.startswith(SCHEME):
            document = await self._library.document(url)
            if document is None:
                raise PageFault("there is no such document in the index")
            page = Page(document.url, document.title, document.text)
        elif self._pages is None:
            raise PageFault("only documents of the offline index (offline://...) can be read here")
        else:
            page = await self._pages.page(url, self._guard.blocks_url)
        if self._guard.blocks_url(page.url) or await asyncio.to_thread(self._guard.blocks_text, page.text):
            raise PageFault("this page is blocked")
        return page

    def _piece(self, page: Page, start: int) -> Observation:
        if not page.text.strip():
            return Observation(text=f"{page.url} holds no text.", is_error=True)
        if start >= len(page.text):
            return Observation(text=f"Error: the text has only {len(page.text)} characters.", is_error=True)
        end = start + self._settings.chars
        head = f"{' '.join(page.title.split())}\n{page.url}\n\n" if start == 0 else ""
        rest = len(page.text) - end
        tail = f"\n\n[{rest} more characters: call fetch again with start={end}]" if rest > 0 else ""
        return Observation(text=f"{head}{page.text[start:end]}{tail}")
