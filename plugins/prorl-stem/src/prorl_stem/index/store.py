"""A read-only index of documents: ranked search, and a document's whole text by its URL.

What a model asks is hostile text. It is cut into words, each one quoted, so nothing of it is FTS5's query language.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

import msgspec

from prorl.api import ConfigError

WORD = re.compile(r"\w+", re.UNICODE)
# Words that are in half of all documents and only cost time.
STOP = frozenset(
    """
    a an and are as at be by can do does for from has have how i in is it its of on or that the this to was what when
    where which who why will with
    """.split()  # noqa: SIM905 - words, as they are read
)
MAX_WORDS = 32
MAX_WORD_CHARS = 64
TITLE_WEIGHT, TEXT_WEIGHT = 4.0, 1.0
SNIPPET_WORDS = 48
VERSION = 1


class Document(msgspec.Struct, frozen=True):
    url: str
    title: str
    text: str


class Found(msgspec.Struct, frozen=True):
    url: str
    title: str
    snippet: str


class Index:
    """A file made by :func:`~prorl_stem.index.build_index`. Safe to use from many threads: every call opens its own
    connection, which takes a fraction of a millisecond. Raises ``ConfigError`` for a file that is no such index."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with self._open() as connection:
                (version,) = connection.execute("PRAGMA user_version").fetchone()
                (self.count,) = connection.execute("SELECT count(*) FROM documents").fetchone()
        except sqlite3.Error as error:
            raise ConfigError(f"{path} is no index: {error}; make one with `prorl stem index`") from error
        if version != VERSION:
            raise ConfigError(f"{path} is an index of another version; make it again with `prorl stem index`")

    def search(self, query: str, limit: int) -> list[Found]:
        """The best ``limit`` documents, best first; none for a query without words."""
        match = match_expression(query)
        if match is None:
            return []
        with self._open() as connection:
            rows = connection.execute(
                "SELECT url, title, snippet(documents, 2, '', '', ' ... ', ?) FROM documents WHERE documents MATCH ?"
                " ORDER BY bm25(documents, 0.0, ?, ?) LIMIT ?",
                (SNIPPET_WORDS, match, TITLE_WEIGHT, TEXT_WEIGHT, limit),
            ).fetchall()
        return [Found(*row) for row in rows]

    def document(self, url: str) -> Document | None:
        with self._open() as connection:
            row = connection.execute(
                "SELECT url, title, text FROM documents WHERE rowid = (SELECT id FROM urls WHERE url = ?)", (url,)
            ).fetchone()
        return None if row is None else Document(*row)

    def documents(self) -> Iterator[Document]:
        """All of them."""
        with self._open() as connection:
            for row in connection.execute("SELECT url, title, text FROM documents ORDER BY rowid"):
                yield Document(*row)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        address = f"file:{quote(str(self.path))}?mode=ro&immutable=1"
        with closing(sqlite3.connect(address, uri=True)) as connection:
            yield connection


def match_expression(query: str) -> str | None:
    """FTS5's form of "any of these words"; ``None`` when there is no word in ``query``."""
    words = [word.lower()[:MAX_WORD_CHARS] for word in WORD.findall(query)]
    telling = [word for word in words if word not in STOP] or words
    return " OR ".join(f'"{word}"' for word in dict.fromkeys(telling[:MAX_WORDS])) or None
