"""Numbers as they are written, with how exactly they are written; and when two of them are the same.

The rule: the answer must agree with the gold to three significant digits, or to all the digits that the gold has when
it has fewer. Two plain whole numbers without a unit are counts: they must be equal.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d*)?|\.\d+)"
EXPONENT = r"(?:[eE]\s?([+-]?\d{1,5})(?![\d.])|\s*[*xX]\s*10\s*(?:\^|\*\*)\s*\(?\s*([+-]?\d{1,5})\s*\)?)"
NUMBER = re.compile(
    rf"([+-]?)\s*(?:({DIGITS})(?:{EXPONENT})?|10\s*(?:\^|\*\*)\s*\(?\s*([+-]?\d{{1,5}})\s*\)?)(?![\d^])"
)
MIXED = re.compile(r"([+-]?)(\d{1,9})\s+(\d{1,9})\s*/\s*(\d{1,9})(?![\d.])")
SCALE = re.compile(r"\s*(thousand|million|billion|trillion)\b", re.IGNORECASE)
SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
BELOW = re.compile(r"\s*/\s*(\d+)(?![\d.])")
ROUNDING = Fraction(1, 10**9)  # for what conversions in floating point lose
MAX_DIGITS = 4000


@dataclass(frozen=True)
class Number:
    """``place``: the unit of the last written digit, when there is a point or an exponent. ``whole``: a plain count."""

    value: Fraction
    place: Fraction | None = None
    whole: bool = False


@dataclass(frozen=True)
class Tolerance:
    """``digits`` that must agree; ``relative`` (of the gold) takes the rule's place where it is set."""

    digits: int = 3
    relative: float | None = None

    def around(self, gold: Number) -> Fraction:
        """How far from ``gold`` an answer may be."""
        size = abs(gold.value)
        if self.relative is not None:
            return size * (Fraction(self.relative) + ROUNDING)
        half_a_place = Fraction(0) if gold.place is None else gold.place / 2
        if size == 0:
            return half_a_place
        last = Fraction(10) ** (magnitude(size) - self.digits + 1)
        return max(last / 2, half_a_place) + size * ROUNDING


def read_number(text: str, at: int = 0) -> tuple[Number, int] | None:
    """The number that begins at ``at`` in plain text, and where it ends: ``2.0*10^3``, ``1 2/3``, ``5 million``."""
    if (mixed := MIXED.match(text, at)) and int(mixed[4]):
        size = int(mixed[2]) + Fraction(int(mixed[3]), int(mixed[4]))
        return Number(-size if mixed[1] == "-" else size), mixed.end()
    match = NUMBER.match(text, at)
    if match is None or len(match[0]) > MAX_DIGITS:
        return None
    sign, digits, *powers = match.groups()
    exponent = next((int(power) for power in powers if power is not None), None)
    scale = Fraction(10) ** (exponent or 0)
    if digits is None:
        value, place, whole = scale, None, True
    else:
        digits = digits.replace(",", "")
        decimals = len(digits.partition(".")[2])
        value = Fraction(digits.removesuffix(".")) * scale
        whole = "." not in digits and exponent is None
        place = None if whole else scale / 10**decimals
    end = match.end()
    if (below := BELOW.match(text, end)) and whole and exponent is None and int(below[1]):
        value, place, whole, end = value / int(below[1]), None, False, below.end()
    if scaled := SCALE.match(text, end):
        factor, end = 10 ** SCALES[scaled[1].lower()], scaled.end()
        value, place = value * factor, None if place is None else place * factor
    return Number(-value if sign == "-" else value, place, whole), end


def same_number(gold: Number, answer: Number, tolerance: Tolerance, *, counts: bool = False) -> bool:
    """``counts``: neither has a unit, so whole numbers are exact."""
    if counts and gold.whole and answer.whole and tolerance.relative is None:
        return gold.value == answer.value
    return abs(gold.value - answer.value) <= tolerance.around(gold)


def magnitude(value: Fraction) -> int:
    """The power of ten of the first digit: 2 for 354, -1 for 0.354."""
    guess = math.floor((value.numerator.bit_length() - value.denominator.bit_length()) * math.log10(2))
    while Fraction(10) ** (guess + 1) <= value:
        guess += 1
    while Fraction(10) ** guess > value:
        guess -= 1
    return guess
