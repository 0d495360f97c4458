"""Units that stand somewhere in a text: behind a number, or where a question says in which one it wants its answer."""

from __future__ import annotations

import re
from collections.abc import Iterator

from prorl_stem.grading.units import Unit, Units

NO_SYMBOLS = frozenset(
    {"at", "are", "and", "as", "be", "is", "it", "of", "the", "to", "by", "per", "for", "if", "or", "no", "so", "us"}
)
PIECE = re.compile(
    r"\s*(?:°[CF]?(?![A-Za-z])|%|[A-Za-zµΩÅ]+|(?:\^|\*\*)\s*\(?[+-]?\d+\)?|(?<=[A-Za-z])-?[1-9](?![\d.])|[*/()])"
)
ASKING = re.compile(
    r"(?:\bin(?:\s+(?:units?\s+of|terms\s+of|the\s+units?\s+of))?|\bunits?\s*(?:of|:|are|is)?|\()\s*(?:in\s+)?",
    re.IGNORECASE,
)
NAME_START = re.compile(r"(?<![A-Za-z])(?=[A-Za-zµΩÅ°%])")
FIRST_NAME = re.compile(r"[\s(/]*(°[CF]?(?![A-Za-z])|%|[A-Za-zµΩÅ]+)")
MAX_PIECES = 10
LONE_LETTERS = frozenset("msgKNJWVACTLM")


def units_in(question: str, units: Units, *, asked_for: bool) -> Iterator[Unit]:
    """Units that the (plain) question names. ``asked_for``: only after "in" or an opening bracket, where it says in
    which one the answer is wanted."""
    starts = [match.end() for match in ASKING.finditer(question)]
    if not asked_for:
        starts += [match.start() for match in NAME_START.finditer(question)]
    for start in dict.fromkeys(starts):
        found = next(prefixes(question, units, start), None)
        if found is not None:
            yield from found[1]


def prefixes(text: str, units: Units, start: int = 0) -> Iterator[tuple[int, list[Unit]]]:
    """The units that ``text`` has at ``start``, longest first: where each ends, and its readings. Words that pint would
    take for units, and letters that stand for anything, are none."""
    first = FIRST_NAME.match(text, start)
    if first is None or not units.knows(first[1]):
        return
    ends: list[int] = []
    at = start
    while len(ends) < MAX_PIECES and (piece := PIECE.match(text, at)) and piece.end() > at:
        at = piece.end()
        ends.append(at)
    for end in reversed(ends):
        unit = text[start:end].strip()
        lone = len(unit) == 1 and unit.isascii() and unit.isalpha() and unit not in LONE_LETTERS
        goes_on = text[end : end + 1].isalnum() or text[end:].lstrip().startswith("_")
        if unit.lower() in NO_SYMBOLS or lone or goes_on:
            continue
        if readings := [reading for reading in units.read(unit) if reading]:
            yield end, readings
