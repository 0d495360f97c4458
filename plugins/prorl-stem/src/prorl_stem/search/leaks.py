"""Where an answer could be read off and not found: sites that hold the data sets, texts that hold the question."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

WORD = re.compile(r"[^\W_]+", re.UNICODE)
MIN_WORDS = 8  # a shorter question is a phrase that any page may hold
RUN = 14  # so many words in a row of a long question give it away


class Guard:
    """For one job. An empty ``question`` blocks by site only."""

    def __init__(self, question: str, domains: Sequence[str]) -> None:
        self._domains = tuple(domain.lower().strip(".") for domain in domains)
        words = words_of(question)
        run = min(RUN, len(words))
        self._runs = set()
        if len(words) >= MIN_WORDS:
            self._runs = {" ".join(words[at : at + run]) for at in range(len(words) - run + 1)}
        self._run = run
        self._firsts = {found.partition(" ")[0] for found in self._runs}

    def blocks_url(self, url: str) -> bool:
        try:
            host = (urlsplit(url).hostname or "").rstrip(".")
        except ValueError:
            return True
        return any(host == domain or host.endswith(f".{domain}") for domain in self._domains)

    def blocks_text(self, text: str) -> bool:
        """Whether ``text`` holds the question (or a long run of it) word by word, whatever stands between the words."""
        if not self._runs:
            return False
        words = words_of(text)
        return any(
            word in self._firsts and " ".join(words[at : at + self._run]) in self._runs for at, word in enumerate(words)
        )


def words_of(text: str) -> list[str]:
    return [word.casefold() for word in WORD.findall(text)]
