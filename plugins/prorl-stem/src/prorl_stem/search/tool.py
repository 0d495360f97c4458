"""``search``: what the agent calls. It runs in the server: the sandbox has no network."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from prorl.api import ConfigError, Observation, TaskFault, ToolContext
from prorl.tools.base import StructTool
from prorl_stem.search.backend import Hit, Refused, SearchFault
from prorl_stem.search.desk import Desk
from prorl_stem.search.leaks import Guard
from prorl_stem.search.offline import Offline
from prorl_stem.settings import SearchSettings

TITLE_CHARS = 200
SNIPPET_CHARS = 800
URL_CHARS = 1000
SPARE = 5  # asked for beyond what is shown, so that withheld hits leave no gap


class SearchArguments(msgspec.Struct, forbid_unknown_fields=True):
    query: Annotated[str, Meta(description="What to search for: a few telling words.")]


class Search(StructTool[SearchArguments]):
    """Without a ``desk`` it searches the offline index: what every other domain gets that names the tool."""

    name = "search"
    aliases = ("web_search",)
    synonyms: ClassVar = {"q": "query", "keywords": "query"}
    description = "Search for documents. Returns titles, addresses and excerpts; read a whole document with fetch."
    arguments = SearchArguments

    def __init__(
        self, desk: Desk | None = None, guard: Guard | None = None, settings: SearchSettings | None = None
    ) -> None:
        self._settings = settings or SearchSettings()
        self._desk = desk or Desk(self._settings, Offline(self._settings))
        self._guard = guard or Guard("", self._settings.block_domains)

    async def run(self, arguments: SearchArguments, context: ToolContext) -> Observation:
        """Raises ``TaskFault`` when no query can succeed: that is the operator's doing, never the policy's."""
        wanted = self._settings.results
        try:
            async with asyncio.timeout(context.timeout):
                hits = await self._desk.search(arguments.query, wanted + SPARE)
        except TimeoutError:
            return Observation(text="Error: the search took too long. Try again, or go on without it.", is_error=True)
        except SearchFault as fault:
            return Observation(text=f"Error: {fault}.", is_error=True)
        except (Refused, ConfigError) as error:
            raise TaskFault(str(error), code="search_refused") from error
        shown = [hit for hit in hits if not self._withheld(hit)]
        text = "\n\n".join(line_up(number, hit) for number, hit in enumerate(shown[:wanted], start=1))
        if not text:
            text = "No documents were found. Try other words."
        return Observation(text=text, data={"hits": len(shown[:wanted]), "withheld": len(hits) - len(shown)})

    def _withheld(self, hit: Hit) -> bool:
        return self._guard.blocks_url(hit.url) or self._guard.blocks_text(f"{hit.title} {hit.snippet}")


def line_up(number: int, hit: Hit) -> str:
    title = one_line(hit.title, TITLE_CHARS) or "(no title)"
    return f"{number}. {title}\n   {one_line(hit.url, URL_CHARS)}\n   {one_line(hit.snippet, SNIPPET_CHARS)}".rstrip()


def one_line(text: str, limit: int) -> str:
    text = " ".join(re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", " ", text).split())
    return text if len(text) <= limit else f"{text[: limit - 4].rstrip()} ..."
