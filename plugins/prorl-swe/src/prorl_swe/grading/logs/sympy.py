"""Logs of SymPy's own runner (``bin/test -C --verbose``): ``test_a ok``, and a heading for every failure."""

from __future__ import annotations

from collections.abc import Iterator

from prorl_swe.grading.verdict import Outcome

ENDS: tuple[tuple[str, Outcome], ...] = ((" E", "error"), (" F", "failed"), (" ok", "passed"))


def read(text: str) -> Iterator[tuple[str, Outcome]]:
    for raw in text.split("\n"):
        if name := heading(raw):
            yield name, "failed"
        line = raw.strip()
        if line.startswith("test_"):
            for end, outcome in ENDS:
                if line.endswith(end):
                    yield line.split(maxsplit=1)[0], outcome


def heading(line: str) -> str | None:
    """``______ sympy/core/tests/test_a.py:test_b ______``: what stands between the first space and the last."""
    first, last = line.find(" "), line.rfind(" ")
    if first < 0 or line.rfind(".py:", first + 1, last) < 0:
        return None
    return line[first + 1 : last]
