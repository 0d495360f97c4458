"""Serper, Tavily, Exa and SearXNG: their requests and replies, as their public documentation has them."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx
import msgspec

from prorl_stem.search.backend import Hit
from prorl_stem.search.http import HttpBackend, decode, joined

SNIPPET_CHARS = 800


class Serper(HttpBackend):
    """Google's results: ``POST {"q", "num"}`` with ``X-API-KEY`` → ``organic[].{title, link, snippet, position}``."""

    name = "serper"
    summary = "Google, by serper.dev"
    url = "https://google.serper.dev/search"
    key_env = "SERPER_API_KEY"

    class Result(msgspec.Struct):
        link: str
        title: str = ""
        snippet: str = ""

    class Reply(msgspec.Struct):
        organic: list[Serper.Result] = []

    def request(self, query: str, limit: int, key: str) -> httpx.Request:
        return httpx.Request("POST", self._address, json={"q": query, "num": limit}, headers={"X-API-KEY": key})

    def refused(self, status: int, body: bytes) -> str | None:
        if status == 400 and b"credits" in body.lower():
            return "its credits are spent"
        return super().refused(status, body)

    def hits(self, body: bytes) -> list[Hit]:
        return [Hit(found.link, found.title, found.snippet) for found in decode(body, Serper.Reply).organic]


class Tavily(HttpBackend):
    """``POST {"query", "max_results"}`` with a bearer key → ``results[].{title, url, content, score}``."""

    name = "tavily"
    summary = "tavily.com"
    url = "https://api.tavily.com/search"
    key_env = "TAVILY_API_KEY"

    class Result(msgspec.Struct):
        url: str
        title: str | None = None
        content: str | None = None

    class Reply(msgspec.Struct):
        results: list[Tavily.Result]

    def request(self, query: str, limit: int, key: str) -> httpx.Request:
        body = {"query": query[:400], "max_results": limit, "search_depth": "basic"}  # longer queries are refused
        return httpx.Request("POST", self._address, json=body, headers={"Authorization": f"Bearer {key}"})

    def hits(self, body: bytes) -> list[Hit]:
        return [Hit(found.url, found.title or "", found.content or "") for found in decode(body, Tavily.Reply).results]


class Exa(HttpBackend):
    """``POST {"query", "numResults", "contents"}`` with ``x-api-key`` → ``results[].{id, url, title, highlights}``."""

    name = "exa"
    summary = "exa.ai"
    url = "https://api.exa.ai/search"
    key_env = "EXA_API_KEY"

    class Result(msgspec.Struct):
        url: str
        title: str | None = None
        text: str | None = None
        highlights: Any = None
        summary: str | None = None

    class Reply(msgspec.Struct):
        results: list[Exa.Result]

    def request(self, query: str, limit: int, key: str) -> httpx.Request:
        contents = {"highlights": True, "text": {"maxCharacters": SNIPPET_CHARS}}
        body = {"query": query, "numResults": limit, "type": "auto", "contents": contents}
        return httpx.Request("POST", self._address, json=body, headers={"x-api-key": key})

    def hits(self, body: bytes) -> list[Hit]:
        return [
            Hit(found.url, found.title or "", joined(found.highlights) or found.summary or found.text or "")
            for found in decode(body, Exa.Reply).results
        ]


class SearXng(HttpBackend):
    """A metasearch server of one's own: ``GET /search?q=&format=json`` → ``results[].{url, title, content}``. Its
    settings must allow the format json."""

    name = "searxng"
    summary = "a SearXNG server of your own"

    class Result(msgspec.Struct):
        url: str
        title: str = ""
        content: str | None = None

    class Reply(msgspec.Struct):
        results: list[SearXng.Result]

    def request(self, query: str, limit: int, key: str) -> httpx.Request:
        scheme, host, path, _, _ = urlsplit(self._address)
        path = path if path.rstrip("/").endswith("/search") else f"{path.rstrip('/')}/search"
        address = urlunsplit((scheme, host, path, "", ""))
        headers = {"Accept": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        return httpx.Request("GET", address, params={"q": query, "format": "json"}, headers=headers)

    def refused(self, status: int, body: bytes) -> str | None:
        if status == 403:
            return "it answers HTTP 403: its settings.yml must name json under search.formats"
        return super().refused(status, body)

    def hits(self, body: bytes) -> list[Hit]:
        return [Hit(found.url, found.title, found.content or "") for found in decode(body, SearXng.Reply).results]
