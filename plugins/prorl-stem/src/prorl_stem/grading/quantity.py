"""A number with a unit, or a range of them: read from plain text, and compared.

Units may differ when they measure the same thing (5 kJ is 5000 J). A unit may be left out when the question names it.
A gold that is a range (``2-3 m``, ``between 2 and 3``, ``5.0 ± 0.2``) is met by any value inside.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction

from prorl_stem.grading.mentions import prefixes, units_in
from prorl_stem.grading.numbers import Number, Tolerance, read_number, same_number
from prorl_stem.grading.units import Unit, Units

LEAD = re.compile(
    r"\A\s*(?:(?:the\s+)?(?:final\s+)?(?:answer|result|value)\s+is\b:?\s*)?"
    r"(?:(?:about|approximately|approx\.?|roughly|around|nearly|circa|ca\.)(?=[\s\d.+-])\s*|≈\s*|=\s*)*",
    re.IGNORECASE,
)
NAMED = re.compile(r"\s*[^\d=≈<>≤≥+*/()]{1,40}?(?:_\w+)?\s*(?:=|≈)\s*(?=[-+≈~$.\d(])")
BETWEEN = re.compile(r"\s*(?:between|from)\s+", re.IGNORECASE)
AND = re.compile(r"\s*(?:and|to|through)\s+|\s*-\s*(?=[.\d])|\s*(?:\.\.\.?)\s*", re.IGNORECASE)
MONEY = re.compile(r"(?:US|USD)?\s*\$\s*|\b(?:USD|dollars?|bucks)\b|[£€¥]", re.IGNORECASE)
LABEL = re.compile(r"[A-Za-z][A-Za-z\-, ]{2,60}\.?")
HEDGE = re.compile(r"\b(?:or|and|not|times|hundred|dozen)\b", re.IGNORECASE)
ASIDE = re.compile(r"\s+\(\s*[A-Za-z][A-Za-z ,\-]{3,60}\)$")


@dataclass(frozen=True)
class Quantity:
    """``high``: a range's other end. ``units``: the readings of its unit, none when there is no unit."""

    number: Number
    high: Number | None = None
    units: list[Unit] = field(default_factory=list)
    percent: bool = False


def read_quantity(text: str, units: Units) -> Quantity | None:
    """All of the plain ``text`` as a quantity; ``None`` when it is anything else."""
    if named := NAMED.match(text):
        text = text[named.end() :]
    text = MONEY.sub(" ", LEAD.sub("", text, count=1)).strip()
    if sign := re.match(r"([+-])\s+(?=[\d.])", text):  # "-$5" has become "- 5"
        text = sign[1] + text[sign.end() :]
    closed = re.fullmatch(r"\[\s*([^,\]]+?)\s*,\s*([^,\]]+?)\s*\](.*)", text)
    if closed:
        text = f"{closed[1]} to {closed[2]} {closed[3]}"
    between = BETWEEN.match(text)
    ends = _ends(text, between.end() if between else 0, units)
    if ends is None or (between and ends[1] is None):
        return None
    low, high, at = ends
    return _with_unit(Quantity(low, high), text[at:].strip(), units)


def _ends(text: str, at: int, units: Units) -> tuple[Number, Number | None, int] | None:
    """One number, or the two of a range, and where they end."""
    first = read_number(text, at)
    if first is None:
        return None
    low, at = first
    if spread := re.compile(r"\s*(?:±|\+/-)\s*").match(text, at):
        second = read_number(text, spread.end())
        if second is None:
            return None
        margin, at = second
        return replace(low, value=low.value - margin.value), replace(low, value=low.value + margin.value), at
    if found := _other_end(text, at, units):
        high, at = found
        return (low, high, at) if high.value >= low.value else None
    return low, None, at


def _other_end(text: str, at: int, units: Units) -> tuple[Number, int] | None:
    """``to 3`` after ``2`` or ``2 m``."""
    joint = AND.match(text, at)
    if joint is None and (apart := re.compile(r"\s*([^\d±]*?)\s+(?:and|to)\s+(?=[\d.+-])").match(text, at)):
        if not units.read(apart[1]):
            return None
        joint = apart
    return read_number(text, joint.end()) if joint else None


def _with_unit(quantity: Quantity, rest: str, units: Units) -> Quantity | None:
    """``m/s``, ``m/s downward`` and ``m/s (downward)`` are one unit; ``bushels of barley`` may be one, ``apples`` is
    none and does not matter."""
    rest = rest.rstrip(".,;").strip()
    if bracketed := re.fullmatch(r"\(([^()]*)\)", rest):
        rest = bracketed[1].strip()
    if not units.read(rest):
        rest = ASIDE.sub("", rest)
    if not rest:
        return quantity
    if percent := re.match(r"%|percent\b", rest, re.IGNORECASE):
        after = rest[percent.end() :].strip()
        return replace(quantity, percent=True) if not after or LABEL.fullmatch(after) else None
    if readings := units.read(rest):
        return replace(quantity, units=[unit for unit in readings if unit])
    for end, readings in prefixes(rest, units):
        if LABEL.fullmatch(rest[end:].strip(" ,;")) and not HEDGE.search(rest[end:]):
            return replace(quantity, units=readings)
    return quantity if LABEL.fullmatch(rest) and not HEDGE.search(rest) else None


def same_quantity(
    gold: Quantity, answer: Quantity, question: str, units: Units, tolerance: Tolerance
) -> tuple[bool, str]:
    """``(same, reason)``. ``question`` is plain text."""
    if answer.high is not None and gold.high is None:
        return False, "a range where one value is asked for"
    if gold.percent or answer.percent:
        return _same_percent(gold, answer, tolerance)
    if gold.units and answer.units:
        return _with_both(gold, answer, units, tolerance)
    if gold.units:
        return _without_its_unit(gold, answer, question, units, tolerance)
    if answer.units:
        return _with_a_unit(gold, answer, question, units, tolerance)
    return _verdict(_meets(gold, answer, tolerance, counts=True))


def _with_both(gold: Quantity, answer: Quantity, units: Units, tolerance: Tolerance) -> tuple[bool, str]:
    measured = False
    for gold_unit in gold.units:
        for unit in answer.units:
            converted = _converted(answer, unit, gold_unit, units)
            if converted is None:
                continue
            measured = True
            if _meets(gold, converted, tolerance, counts=False):
                return True, "the same quantity"
    return False, "another value" if measured else "a unit of something else"


def _without_its_unit(
    gold: Quantity, answer: Quantity, question: str, units: Units, tolerance: Tolerance
) -> tuple[bool, str]:
    """The answer has no unit: it is in one that the question names."""
    for unit in _distinct(units_in(question, units, asked_for=False), units):
        converted = _converted(gold, gold.units[0], unit, units)
        if converted is not None and _meets(converted, answer, tolerance, counts=False):
            return True, "the same value, in a unit that the question names"
    if _meets(gold, answer, tolerance, counts=False):
        return False, "the unit is missing, and the question does not name it"
    return False, "another value"


def _with_a_unit(
    gold: Quantity, answer: Quantity, question: str, units: Units, tolerance: Tolerance
) -> tuple[bool, str]:
    """The gold has no unit: it is in the one that the question asks for."""
    asked = list(units_in(question, units, asked_for=True))
    if not asked:
        return _verdict(_meets(gold, answer, tolerance, counts=False))
    there = [converted for unit in asked if (converted := _converted(answer, answer.units[0], unit, units)) is not None]
    if any(_meets(gold, converted, tolerance, counts=False) for converted in there):
        return True, "the same value, in the unit that is asked for"
    return False, "another value" if there else "another unit than the one that is asked for"


def _same_percent(gold: Quantity, answer: Quantity, tolerance: Tolerance) -> tuple[bool, str]:
    """The sign may be left out: 10% is 10, and 0.1."""
    if gold.units or answer.units:
        return False, "a unit of something else"
    readings = [answer]
    if gold.percent != answer.percent:
        scale = Fraction(100) if gold.percent else Fraction(1, 100)
        readings.append(_scaled(answer, scale))
    return _verdict(any(_meets(gold, reading, tolerance, counts=False) for reading in readings))


def _meets(gold: Quantity, answer: Quantity, tolerance: Tolerance, *, counts: bool) -> bool:
    if gold.high is None:
        return same_number(gold.number, answer.number, tolerance, counts=counts)
    if answer.high is not None:
        return same_number(gold.number, answer.number, tolerance) and same_number(gold.high, answer.high, tolerance)
    return gold.number.value <= answer.number.value <= gold.high.value


def _converted(quantity: Quantity, given: Unit, wanted: Unit, units: Units) -> Quantity | None:
    numbers: list[Number] = []
    for number in (quantity.number, *([] if quantity.high is None else [quantity.high])):
        value = units.convert(float(number.value), given, wanted)
        if value is None:
            return None
        place = number.place
        if place is not None:
            beside = units.convert(float(number.value + place), given, wanted)
            place = abs(Fraction(beside or 0.0) - Fraction(value))
        numbers.append(Number(Fraction(value), place))
    return replace(quantity, number=numbers[0], high=numbers[1] if len(numbers) > 1 else None, units=[wanted])


def _scaled(quantity: Quantity, factor: Fraction) -> Quantity:
    number = quantity.number
    place = None if number.place is None else number.place * factor
    return replace(quantity, number=Number(number.value * factor, place))


def _distinct(found: Iterable[Unit], units: Units) -> list[Unit]:
    distinct: list[Unit] = []
    for unit in found:
        if not any(units.same(unit, other) for other in distinct):
            distinct.append(unit)
    return distinct


def _verdict(same: bool) -> tuple[bool, str]:
    return same, "the same value" if same else "another value"
