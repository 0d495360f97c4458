"""Is this output the expected one? The function that the grader's processes run: no program of anybody's comes here,
but outputs may be large and strange.

Text is compared word by word, so blanks, line ends and empty lines don't count (``whitespace="lines"``: line by line,
with only trailing blanks and lines left out of account). Values are compared as JSON. Whole numbers are exact at any
size. Only in a problem that is about floats, one of whose expected outputs has a decimal fraction, may a number be off
by ``tolerance``, absolute or relative, where a fraction is expected; where a whole number is, ``3.0`` is 3.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from prorl_code.rows.problem import LongNumber, loads

FRACTION = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?")
WHOLE = re.compile(r"[+-]?\d+")
MAX_NUMBER = 400  # characters; a longer word is no float


def grade(payload: dict[str, Any]) -> dict[str, Any]:
    """``{"kind": "text" | "value", "expected", "output", "whitespace", "wrapped", "tolerance": float | None}`` to
    ``{"same": bool, "reason": str}``."""
    expected, output, tolerance = payload["expected"], payload["output"], payload["tolerance"]
    if payload["kind"] == "text":
        reason = differing_text(expected, output, tolerance, lines=payload["whitespace"] == "lines")
    else:
        reason = differing_value(expected, output, tolerance, wrapped=payload["wrapped"])
    return {"same": reason is None, "reason": reason or "as expected"}


def has_fraction(expected: str, *, value: bool) -> bool:
    """Whether an expected output is about floats."""
    if value:
        return _has_float(loads(expected))
    return any(FRACTION.fullmatch(word) for word in expected.split())


def _has_float(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_float, value))
    if isinstance(value, dict):
        return any(map(_has_float, value.values()))
    return isinstance(value, float)


def differing_text(expected: str, output: str, tolerance: float | None, *, lines: bool = False) -> str | None:
    """The first difference in words; ``None`` if there is none."""
    if lines:
        wanted, found = ([line.rstrip() for line in text.rstrip().split("\n")] for text in (expected, output))
    else:
        wanted, found = expected.split(), output.split()
    what = "line" if lines else "word"
    for number, (left, right) in enumerate(zip(wanted, found, strict=False), start=1):
        if left != right and not (tolerance and _same_words(left.split(), right.split(), tolerance)):
            return f"{what} {number} is {shown(right)}, not {shown(left)}"
    if len(wanted) > len(found):
        return f"it ends after {what} {len(found)}, before {shown(wanted[len(found)])}"
    if len(found) > len(wanted):
        return f"it goes on after {what} {len(wanted)}, with {shown(found[len(wanted)])}"
    return None


def _same_words(wanted: list[str], found: list[str], tolerance: float) -> bool:
    return len(wanted) == len(found) and all(
        left == right or _close(left, right, tolerance) for left, right in zip(wanted, found, strict=True)
    )


def _close(left: str, right: str, tolerance: float) -> bool:
    """``left`` is the expected word."""
    if len(left) > MAX_NUMBER or len(right) > MAX_NUMBER:
        return False
    if WHOLE.fullmatch(left) and FRACTION.fullmatch(right):
        return abs(float(right)) < 2**53 and float(right) == int(left)
    if FRACTION.fullmatch(left) and (FRACTION.fullmatch(right) or WHOLE.fullmatch(right)):
        return near(float(left), float(right), tolerance)
    return False


def near(wanted: float, found: float, tolerance: float) -> bool:
    return math.isfinite(found) and abs(wanted - found) <= tolerance * max(1.0, abs(wanted))


def differing_value(expected: str, output: str, tolerance: float | None, *, wrapped: bool = False) -> str | None:
    wanted = loads(expected)
    try:
        found = loads(output)
    except (ValueError, RecursionError):
        return "it returned what is no JSON value"
    if same_value(wanted, found, tolerance) or (wrapped and same_value(wanted[0], found, tolerance)):
        return None
    return f"it returned {shown(output)}, not {shown(expected)}"


def same_value(wanted: Any, found: Any, tolerance: float | None) -> bool:
    if isinstance(wanted, list):
        pairs = zip(wanted, found, strict=True) if isinstance(found, list) and len(wanted) == len(found) else None
        return pairs is not None and all(same_value(left, right, tolerance) for left, right in pairs)
    if isinstance(wanted, dict):
        return (
            isinstance(found, dict)
            and wanted.keys() == found.keys()
            and all(same_value(item, found[key], tolerance) for key, item in wanted.items())
        )
    if isinstance(wanted, LongNumber) or isinstance(found, LongNumber):
        return type(wanted) is type(found) and wanted == found
    if isinstance(wanted, float) and isinstance(found, int | float) and not isinstance(found, bool):
        return wanted == found or (tolerance is not None and _near_number(wanted, found, tolerance))
    return bool(wanted == found)


def _near_number(wanted: float, found: float, tolerance: float) -> bool:
    try:
        return near(wanted, float(found), tolerance)
    except OverflowError:
        return False


def shown(text: str) -> str:
    return json.dumps(text if len(text) <= 60 else f"{text[:40]}...", ensure_ascii=False)
