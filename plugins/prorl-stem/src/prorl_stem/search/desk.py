"""Where all jobs' queries to one backend come together: cached, paced, asked again when that may help."""

from __future__ import annotations

from prorl_stem.patience import persist
from prorl_stem.search.backend import Hit, SearchBackend, SearchFault, make_backend
from prorl_stem.search.keep import Cache, Pace
from prorl_stem.settings import SearchSettings

MAX_QUERY_CHARS = 2000


class Desk:
    """Made from the server's settings; ``backend`` takes the place of the one they name. Use it on one event loop."""

    def __init__(self, settings: SearchSettings, backend: SearchBackend | None = None) -> None:
        self.backend = make_backend(settings) if backend is None else backend
        self._retries = settings.retries
        self._pace = Pace(settings.per_second) if settings.backend != "offline" else None
        self._cache: Cache[list[Hit]] = Cache(settings.cache_entries, settings.cache_s)

    async def search(self, query: str, limit: int) -> list[Hit]:
        """Raises :class:`~prorl_stem.search.SearchFault`, :class:`~prorl_stem.search.Refused`, ``ConfigError``."""
        query = " ".join(query.split())[:MAX_QUERY_CHARS]
        if not query:
            raise SearchFault("the query is empty")
        return await self._cache.get((query, limit), lambda: self._ask(query, limit))

    async def _ask(self, query: str, limit: int) -> list[Hit]:
        async def ask() -> list[Hit]:
            if self._pace is not None:
                await self._pace.turn()
            return await self.backend.search(query, limit)

        return await persist(ask, self._retries)

    async def close(self) -> None:
        await self._cache.close()
