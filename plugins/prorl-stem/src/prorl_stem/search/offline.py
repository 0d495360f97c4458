"""The offline index as a backend: the default. It needs no network, and what it finds can be fetched."""

from __future__ import annotations

import asyncio
from pathlib import Path

from prorl_stem.index import Document, Index, reference_index
from prorl_stem.search.backend import Hit
from prorl_stem.settings import SearchSettings


class Offline:
    name = "offline"
    summary = "an index on this machine: the corpus that comes along, or one of your own"

    def __init__(self, settings: SearchSettings) -> None:
        self._path = settings.index
        self._index: Index | None = None
        self._opening = asyncio.Lock()

    async def search(self, query: str, limit: int) -> list[Hit]:
        index = await self._opened()
        found = await asyncio.to_thread(index.search, query, limit)
        return [Hit(hit.url, hit.title, hit.snippet) for hit in found]

    async def document(self, url: str) -> Document | None:
        """The whole of a document that a search found."""
        index = await self._opened()
        return await asyncio.to_thread(index.document, url)

    async def _opened(self) -> Index:
        async with self._opening:
            if self._index is None:
                self._index = await asyncio.to_thread(self._open)
            return self._index

    def _open(self) -> Index:
        return reference_index() if self._path is None else Index(Path(self._path))
