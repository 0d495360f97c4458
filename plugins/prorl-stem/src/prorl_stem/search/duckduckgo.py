"""DuckDuckGo, by its page without scripts: no key, no promise. It answers HTTP 202 to those that ask too often."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import httpx
from lxml import etree, html

from prorl_stem.search.backend import Hit
from prorl_stem.search.http import HttpBackend

RESULT = "//div[contains(concat(' ', @class, ' '), ' result ') and not(contains(@class, 'result--ad'))]"
TITLE = ".//a[contains(@class, 'result__a')]"
SNIPPET = ".//*[contains(@class, 'result__snippet')]"
AGENT = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"  # it answers browsers only


class DuckDuckGo(HttpBackend):
    name = "duckduckgo"
    summary = "DuckDuckGo's page without scripts: no key, and soon too busy"
    url = "https://html.duckduckgo.com/html/"

    def request(self, query: str, limit: int, key: str) -> httpx.Request:
        return httpx.Request("POST", self._address, data={"q": query[:499], "kl": ""}, headers={"User-Agent": AGENT})

    def hits(self, body: bytes) -> list[Hit]:
        try:
            page = html.document_fromstring(body, parser=html.HTMLParser(encoding="utf-8"))
        except etree.LxmlError as error:
            raise ValueError("no page") from error
        found = []
        for result in page.xpath(RESULT):
            links = result.xpath(TITLE)
            if not links:
                continue
            snippets = result.xpath(SNIPPET)
            snippet = snippets[0].text_content() if snippets else ""
            found.append(Hit(target(links[0].get("href", "")), links[0].text_content().strip(), snippet.strip()))
        if not found and not page.xpath("//*[contains(@class, 'no-results')]"):
            raise ValueError("neither results nor the word that there are none")
        return found


def target(link: str) -> str:
    """Where a result leads: its links go through a counter, ``//duckduckgo.com/l/?uddg=<url>``."""
    parts = urlsplit(link)
    if parts.path == "/l/" and (named := parse_qs(parts.query).get("uddg")):
        return named[0]
    return f"https:{link}" if link.startswith("//") else link
