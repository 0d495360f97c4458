"""The offline index: time to build it, and per query, against a scan of the same rows (SQLite's LIKE)."""

from __future__ import annotations

import sqlite3
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path

from prorl_stem.index import Index, build_index, reference_index

QUERIES = (
    "speed of light in vacuum",
    "melting point of iron",
    "metabolic process that breaks down carbohydrates and releases energy",
    "Which of the following genetic tests is used to identify the presence of a specific mutation in cystic fibrosis?",
    "Planck constant in electron volts",
)
ROUNDS = 20


def main() -> None:
    documents = list(reference_index().documents())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index.db"
        began = time.perf_counter()
        count = build_index(documents, path)
        built = time.perf_counter() - began
        index = Index(path)
        times = []
        for _ in range(ROUNDS):
            for query in QUERIES:
                began = time.perf_counter()
                index.search(query, 10)
                times.append(time.perf_counter() - began)
        scans = []
        with closing(sqlite3.connect(path)) as connection:
            for query in QUERIES:
                began = time.perf_counter()
                words = query.split()
                like = " OR ".join("text LIKE ?" for _ in words)
                connection.execute(
                    f"SELECT url FROM documents WHERE {like}", [f"%{word}%" for word in words]
                ).fetchall()
                scans.append(time.perf_counter() - began)
        size = path.stat().st_size / 1e6
    ordered = sorted(times)
    p50, p99 = statistics.median(times), ordered[int(len(ordered) * 0.99)]
    print(f"{count} documents, {size:.1f} MB: built in {built:.2f} s, {count / built:.0f} documents/s")
    print(f"query: p50 {p50 * 1e3:.2f} ms, p99 {p99 * 1e3:.2f} ms (each opens its own connection)")
    print(f"a scan of the same rows takes {statistics.median(scans) / p50:.0f} times as long")


if __name__ == "__main__":
    main()
