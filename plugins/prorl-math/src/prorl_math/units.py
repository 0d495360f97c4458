"""Units at the end of an answer, or a currency sign before it. A unit may be left out; two that are given must measure
the same thing, and are converted: 5 m is 500 cm, and not 5 cm. A word that is no known unit is ignored."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

# dimension: {unit: (size, names)}; the plural's s is understood
KNOWN: dict[str, dict[Fraction, tuple[str, ...]]] = {
    "length": {
        Fraction(1, 1000): ("mm", "millimeter", "millimetre"),
        Fraction(1, 100): ("cm", "centimeter", "centimetre"),
        Fraction(1): ("m", "meter", "metre"),
        Fraction(1000): ("km", "kilometer", "kilometre"),
        Fraction(254, 10000): ("in", "inch", "inches"),
        Fraction(3048, 10000): ("ft", "foot", "feet"),
        Fraction(9144, 10000): ("yd", "yard"),
        Fraction(1609344, 1000): ("mi", "mile"),
    },
    "time": {
        Fraction(1): ("s", "sec", "second"),
        Fraction(60): ("min", "minute"),
        Fraction(3600): ("h", "hr", "hour"),
        Fraction(86400): ("day",),
        Fraction(604800): ("week",),
    },
    "years": {Fraction(1): ("year", "yr"), Fraction(1, 12): ("month",)},
    "mass": {
        Fraction(1, 1000): ("mg", "milligram"),
        Fraction(1): ("g", "gram"),
        Fraction(1000): ("kg", "kilogram"),
        Fraction(45359237, 100000): ("lb", "pound"),
        Fraction(45359237, 1600000): ("oz", "ounce"),
    },
    "volume": {Fraction(1, 1000): ("ml", "milliliter", "millilitre"), Fraction(1): ("l", "liter", "litre")},
    "speed": {
        Fraction(44704, 100000): ("mph", "mi/h", "mile per hour", "miles per hour", "mile/hour", "miles/hour"),
        Fraction(1000, 3600): ("km/h", "kph", "kmh", "kilometer per hour", "kilometers per hour"),
        Fraction(1): ("m/s", "meter per second", "meters per second", "metres per second"),
        Fraction(3048, 10000): ("ft/s", "feet per second"),
    },
    "dollars": {Fraction(1): ("dollar", r"\$", "$", "usd"), Fraction(1, 100): ("cent", r"\cent", "¢")},
    "euros": {Fraction(1): ("euro", "€")},
    "pounds": {Fraction(1): ("£",)},
    "yen": {Fraction(1): ("yen", "¥")},
    "angle in degrees": {Fraction(1): ("degree", "deg", r"^\circ", r"^{\circ}")},
    "angle in radians": {Fraction(1): ("radian", "rad")},
}


class Unit(NamedTuple):
    """``power`` 2 for an area; ``size`` is in the dimension's own unit, to that power."""

    dimension: str
    power: int
    size: Fraction


NAMED = {
    name: Unit(dimension, 1, size)
    for dimension, units in KNOWN.items()
    for size, names in units.items()
    for name in names
}
TEXT_UNIT = re.compile(
    r"\A(.*?[\w})!\]])(?:\s|\\[,;: !]|~)*"
    r"\\(?:text|textrm|mathrm|mbox|rm)\s*\{\s*([^{}]*?)\s*\}\s*(\^\s*\{?\s*[23]\s*\}?)?\s*\Z",
    re.DOTALL,
)
PLAIN_UNIT = re.compile(
    r"\A(.*[\d}])(?:\s|\\[,; ])*?((?:(?:square|sq\.?|cubic|cu\.?)\s+)?[A-Za-z]+(?:\s+per\s+[a-z]+|/[a-z]+)?)\.?"
    r"\s*(\^\s*\{?[23]\}?)?\s*\Z",
    re.DOTALL,
)
SIGN_UNIT = re.compile(r"\A(.*?)\s*(\^\s*\{?\s*\\circ\s*\}?|\\cent|¢|€|£|¥|\\\$)\s*\Z", re.DOTALL)
CURRENCY = re.compile(r"\A\s*(-?)\s*(\\\$|\$|€|£|¥)\s*(-?)(.*)\Z", re.DOTALL)
POWER_WORDS = {"square ": 2, "sq ": 2, "sq. ": 2, "cubic ": 3, "cu ": 3, "cu. ": 3}


def split_unit(text: str, *, expected: bool = False) -> tuple[str, Unit | None]:
    """``text`` without its unit, and the unit if it is a known one. Text of an unknown unit stays for the parser.

    A single plain letter, as in ``5 m``, is a unit only where one is ``expected``; else it is a symbol.
    """
    if match := CURRENCY.match(text):
        return match[1] + match[3] + match[4], NAMED[match[2]]
    if match := SIGN_UNIT.match(text):
        return match[1], known_unit(re.sub(r"[\s{}]", "", match[2]), None)
    for form in (TEXT_UNIT, PLAIN_UNIT):
        if match := form.match(text):
            unit = known_unit(match[2], match[3])
            if unit is not None and (form is TEXT_UNIT or expected or len(match[2]) > 1):
                return match[1], unit
    return text, None


def known_unit(words: str, power: str | None) -> Unit | None:
    name = " ".join(words.lower().split()).rstrip(".")
    exponent = int(re.sub(r"\D", "", power)) if power else 1
    for word, value in POWER_WORDS.items():
        if name.startswith(word):
            name, exponent = name.removeprefix(word), value
    if caret := re.fullmatch(r"(.*?)\s*\^\s*([23])", name):
        name, exponent = caret[1], int(caret[2])
    unit = NAMED.get(name) or NAMED.get(name.removesuffix("s"))
    return unit and Unit(unit.dimension, exponent, unit.size**exponent)
