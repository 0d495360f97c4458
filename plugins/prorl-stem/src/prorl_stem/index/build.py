"""Making an index: from JSONL files and folders of text, or from the corpus that comes with this package."""

from __future__ import annotations

import gzip
import hashlib
import os
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from prorl.api import ConfigError
from prorl_stem.index.store import VERSION, Document, Index

SCHEMA = (
    "CREATE VIRTUAL TABLE documents USING fts5(url UNINDEXED, title, text, tokenize = 'porter unicode61')",
    "CREATE TABLE urls (url TEXT PRIMARY KEY, id INTEGER NOT NULL) WITHOUT ROWID",
)
TEXT_SUFFIXES = (".txt", ".md", ".rst")
MAX_TEXT_CHARS = 2_000_000


def build_index(documents: Iterable[Document], path: Path) -> int:
    """Write the index to ``path``, whole or not at all; returns how many documents it holds.

    The first of two with the same URL stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    made = Path(name)
    try:
        with closing(sqlite3.connect(made)) as connection:
            connection.execute("PRAGMA journal_mode = OFF")
            connection.execute("PRAGMA synchronous = OFF")
            for statement in SCHEMA:
                connection.execute(statement)
            count = 0
            for document in documents:
                added = connection.execute("INSERT OR IGNORE INTO urls VALUES (?, ?)", (document.url, count + 1))
                if added.rowcount:
                    count += 1
                    connection.execute(
                        "INSERT INTO documents(rowid, url, title, text) VALUES (?, ?, ?, ?)",
                        (count, document.url, document.title, document.text[:MAX_TEXT_CHARS]),
                    )
            connection.execute("INSERT INTO documents(documents) VALUES ('optimize')")
            connection.execute(f"PRAGMA user_version = {VERSION:d}")
            connection.commit()
        made.chmod(0o644)
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)
    return count


def read_documents(source: Path) -> Iterator[Document]:
    """A JSONL file (``{"url"?, "title"?, "text"}``, also ``.gz``), or a folder of such and of .txt, .md and .rst files.

    Raises ``ConfigError`` that names the file, the line and the field.
    """
    if source.is_dir():
        for path in sorted(source.rglob("*")):
            if path.is_file() and (path.suffix in TEXT_SUFFIXES or _is_jsonl(path)):
                yield from _read_file(path, path.relative_to(source))
    elif source.is_file():
        yield from _read_file(source, Path(source.name))
    else:
        raise ConfigError(f"no such file or folder: {source}")


def reference_index() -> Index:
    """The index of the corpus that comes along, made when it is first wanted (a second) and kept in the cache."""
    packed = files("prorl_stem").joinpath("corpus/reference.jsonl.gz").read_bytes()
    path = cache_folder() / f"reference-{VERSION}-{hashlib.sha256(packed).hexdigest()[:16]}.db"
    if not path.exists():
        try:
            build_index(_unpacked(gzip.decompress(packed), "reference.jsonl.gz"), path)
        except OSError as error:  # a home that cannot be written to, as on many clusters' nodes
            raise ConfigError(
                f"the offline index cannot be kept in {path.parent}: {error.strerror}; set XDG_CACHE_HOME, "
                "or make one with `prorl stem index` and name it in handlers.stem.search.index"
            ) from error
    return Index(path)


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/prorl/stem``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "prorl" / "stem"


def _is_jsonl(path: Path) -> bool:
    return path.name.endswith((".jsonl", ".jsonl.gz"))


def _read_file(path: Path, shown: Path) -> Iterator[Document]:
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if _is_jsonl(path):
        yield from _unpacked(content, str(path))
        return
    text = content.decode(errors="replace")
    title = next((line.strip("# ").strip() for line in text.splitlines() if line.strip()), shown.name)
    yield Document(f"offline://files/{shown.as_posix()}", title[:300], text)


def _unpacked(content: bytes, where: str) -> Iterator[Document]:
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ConfigError(f"{where}: line {number}: not a JSON object: {error}") from error
        for field in ("text", "title", "url"):
            value = row.get(field)
            if (value is None and field == "text") or not isinstance(value, str | None) or value == "":
                raise ConfigError(f"{where}: line {number}: {field} must be text; it is {value!r:.80}")
        title = row.get("title") or row["text"][:80]
        yield Document(row.get("url") or f"offline://{Path(where).stem}/{number}", title, row["text"])
