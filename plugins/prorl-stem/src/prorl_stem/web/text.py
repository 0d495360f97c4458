"""A page's text. Hostile HTML is parsed in a grader process, which can be killed, and never in the server's own.

``extract({"body", "content_type", "url"}) -> {"title", "text"}``
"""

from __future__ import annotations

import json
from typing import Any

import trafilatura
from lxml import html

HTML = ("text/html", "application/xhtml+xml")
MAX_TEXT_BYTES = 600_000  # a grader's reply holds a mebibyte


def extract(payload: dict[str, Any]) -> dict[str, Any]:
    body = payload["body"]
    if payload["content_type"] not in HTML:
        return {"title": "", "text": fitting(body)}
    text = trafilatura.extract(body, url=payload["url"], include_comments=False, include_tables=True, deduplicate=True)
    page = html.document_fromstring(body) if body.strip() else None
    title = "" if page is None else " ".join("".join(page.xpath("//title//text()")).split())[:300]
    if not text and page is not None:  # too little of an article for trafilatura: all that is shown
        for hidden in page.xpath("//script | //style | //noscript | //template"):
            hidden.drop_tree()
        text = "\n".join(line for line in (" ".join(part.split()) for part in page.text_content().splitlines()) if line)
    return {"title": title, "text": fitting(text or "")}


def fitting(text: str) -> str:
    """``text``, cut so that its JSON fits a reply."""
    while len(json.dumps(text)) > MAX_TEXT_BYTES:
        text = text[: len(text) * 9 // 10]
    return text
