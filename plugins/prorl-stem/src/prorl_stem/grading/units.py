"""Units as people write them, as pint's: ``m s^-1``, ``kJ/mol``, ``J/(kg K)``, ``meters per second``, ``°C``.

Only a grammar of this file reads text: factors, exponents, ``*``, ``/``, ``per`` and brackets. pint is asked about
single names that are nothing but letters.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

import pint

TOKEN = re.compile(
    r"\s*(?:(?P<name>°[CF]?(?![A-Za-z])|%|[A-Za-zµΩÅ]+)|(?P<power>(?:\^|\*\*)\s*\(?\s*[+-]?\d{1,2}(?:/\d{1,2})?\s*\)?"
    r"|(?<=[A-Za-z)])-?[1-9](?![\d.]))|(?P<sign>[*/()]))"
)
ALIASES = {
    "°": "degree", "°C": "degC", "°F": "degF", "%": "percent", "sec": "second", "secs": "second", "hr": "hour",
    "hrs": "hour", "yr": "year", "yrs": "year", "mins": "minute", "arcsecs": "arcsecond", "arcsec": "arcsecond",
    "arcmin": "arcminute", "Å": "angstrom", "Ω": "ohm", "Ohm": "ohm", "Ohms": "ohm", "mole": "mol", "moles": "mol",
    "mols": "mol", "KG": "kg", "Kg": "kg", "KJ": "kJ", "KM": "km", "Km": "km", "cc": "cm**3", "ml": "mL", "l": "liter",
    "AU": "astronomical_unit", "au": "astronomical_unit", "ly": "light_year", "lyr": "light_year", "amu": "dalton",
    "u": "dalton", "Da": "dalton", "kDa": "kilodalton", "lbs": "pound", "lb": "pound", "M": "molar", "mM": "millimolar",
    "µM": "micromolar", "nM": "nanomolar", "gauss": "gauss", "Gauss": "gauss", "celsius": "degC", "fahrenheit": "degF",
    "kelvins": "kelvin", "amps": "ampere", "amp": "ampere", "mmHg": "mmHg", "parsecs": "parsec", "litre": "liter",
    "litres": "liter", "metre": "meter", "metres": "meter", "centimetre": "centimeter", "centimetres": "centimeter",
    "kilometre": "kilometer", "kilometres": "kilometer", "millimetre": "millimeter", "millimetres": "millimeter",
    "nanometre": "nanometer", "nanometres": "nanometer", "deg": "degree", "degs": "degree", "percent": "percent",
    "wb": "weber", "mph": "mile/hour", "kph": "kilometer/hour", "kmph": "kilometer/hour", "rpm": "revolution/minute",
}  # fmt: skip
WORD_POWERS = {"square": 2, "squared": 2, "cubic": 3, "cubed": 3}
# Letters that pint takes for units, and people for variables.
NOT_UNITS = frozenset(
    {"a", "b", "c", "d", "e", "i", "k", "n", "p", "q", "r", "x", "y", "z", "v", "f", "t", "j", "pi", "in"}
)
DEGREES = re.compile(r"(?:\b(?:degrees?|deg)\.?\s*|°\s*)(celsius|centigrade|fahrenheit|[CF])\b", re.IGNORECASE)
OFFSET = frozenset({"degree_Celsius", "degree_Fahrenheit"})
MAX_TOKENS = 24
MAX_POWER = 12
MAX_KNOWN = 20_000

Unit = dict[str, Fraction]


class Units:
    """One pint registry and what was asked of it. Making it takes a second: keep it."""

    def __init__(self) -> None:
        self._registry: Any = pint.UnitRegistry(autoconvert_offset_to_baseunit=True)
        self._known = lru_cache(MAX_KNOWN)(self._look_up)

    def read(self, text: str) -> list[Unit]:
        """The units that ``text`` may mean, the strict reading first: ``J/kg*K`` is also taken for J/(kg K). Empty when
        it is no unit. Names are pint's, exponents rational."""
        text = DEGREES.sub(lambda match: f"°{match[1][0].upper()}", text)
        # milliseconds to a negative power are rare; metres per second written so are in half of all textbooks
        text = re.sub(r"\bms(?=\s*(?:\^|\*\*)\s*\(?\s*-)", "m s", text.strip())
        tokens = tokens_of(text)
        if not tokens or len(tokens) > MAX_TOKENS:
            return []
        readings = []
        for below_is_all in (False, True):
            reader = _Reader(tokens, self._known, below_is_all=below_is_all)
            unit = reader.product()
            if unit is not None and reader.at_end and unit not in readings:
                readings.append(unit)
        return readings

    def knows(self, name: str) -> bool:
        """Whether a unit may begin with this name."""
        return name.lower() in WORD_POWERS or name == "ms" or self._known(name) is not None

    def convert(self, value: float, given: Unit, wanted: Unit) -> float | None:
        """``value`` in another unit; ``None`` when they measure different things. Temperatures are absolute."""
        try:
            return float(self._registry.Quantity(value, self._unit(given)).to(self._unit(wanted)).magnitude)
        except (pint.DimensionalityError, pint.OffsetUnitCalculusError):
            return None

    def compatible(self, one: Unit, other: Unit) -> bool:
        return bool(self._unit(one).dimensionality == self._unit(other).dimensionality)

    def same(self, one: Unit, other: Unit) -> bool:
        """The same unit under two names: ``m/s`` and ``meters per second``."""
        if not self.compatible(one, other):
            return False
        pairs = [(value, self.convert(value, one, other)) for value in (1.0, 37.0)]
        return all(there is not None and abs(there - value) <= 1e-12 * value for value, there in pairs)

    def _unit(self, unit: Unit) -> Any:
        """pint's object. Degrees are a temperature when they stand alone, and a difference within a product (J/°C)."""
        alone = list(unit.values()) == [1]
        made = self._registry.Unit("")
        for name, power in unit.items():
            known = name if alone or name not in OFFSET else f"delta_{name}"
            made *= self._registry.Unit(known) ** (int(power) if power.denominator == 1 else float(power))
        return made

    def _look_up(self, name: str) -> Unit | None:
        """One name, as pint's names."""
        if name in NOT_UNITS:
            return None
        for candidate in (ALIASES.get(name), ALIASES.get(name.lower()) if len(name) > 3 else None, name):
            if candidate is None:
                continue
            if unit := self._ask(candidate):
                return unit
        if len(name) > 3 and not name.islower() and (unit := self._ask(name.lower())):
            return unit
        return None

    def _ask(self, name: str) -> Unit | None:
        if len(name) > 40:
            return None
        try:
            unit = self._registry.parse_units(name)
        except (pint.UndefinedUnitError, ValueError, AttributeError, TypeError, KeyError):
            return None
        return {str(part): Fraction(power).limit_denominator(100) for part, power in unit._units.items()}  # noqa: SLF001


class _Reader:
    """Recursive descent: ``product := factor ((`*` | `/` | `per` | nothing) factor)*``."""

    def __init__(self, tokens: list[tuple[str, str]], known: Any, *, below_is_all: bool) -> None:
        self._tokens = tokens
        self._known = known
        self._below_is_all = below_is_all
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._tokens)

    def product(self) -> Unit | None:
        unit: Unit = {}
        sign = 1
        seen = False
        while self._at < len(self._tokens):
            kind, text = self._tokens[self._at]
            if (kind, text) == ("sign", ")"):
                break
            if kind == "sign" and text in "*/":
                self._at += 1
                sign = -1 if text == "/" else sign if self._below_is_all else 1
                if text == "*" and not seen:
                    return None
                continue
            if kind == "name" and text.lower() == "per":
                self._at += 1
                sign = -1
                continue
            factor = self._factor()
            if factor is None:
                return None
            for name, power in factor.items():
                unit[name] = unit.get(name, Fraction(0)) + sign * power
            seen = True
            if not self._below_is_all and not self._next_is_space_product():
                sign = 1
        return {name: power for name, power in unit.items() if power} if seen else None

    def _next_is_space_product(self) -> bool:
        """``J/mol K`` means J/(mol K) to everybody: a blank binds tighter than the stroke."""
        return self._at < len(self._tokens) and self._tokens[self._at][0] == "name"

    def _factor(self) -> Unit | None:
        kind, text = self._tokens[self._at]
        self._at += 1
        lead = 1
        if kind == "name" and text.lower() in ("square", "cubic"):
            lead = WORD_POWERS[text.lower()]
            if self._at >= len(self._tokens):
                return None
            kind, text = self._tokens[self._at]
            self._at += 1
        if (kind, text) == ("sign", "("):
            unit = self.product()
            if unit is None or self._at >= len(self._tokens) or self._tokens[self._at][1] != ")":
                return None
            self._at += 1
        elif kind == "name":
            unit = self._known(text)
        else:
            return None
        if unit is None:
            return None
        power = self._power()
        if power is None:
            return None
        power *= lead
        return {name: exponent * power for name, exponent in unit.items()}

    def _power(self) -> Fraction | None:
        if self._at < len(self._tokens):
            kind, text = self._tokens[self._at]
            if kind == "power":
                self._at += 1
                power = Fraction(re.sub(r"[\s^*()+]", "", text).replace("--", "-") or "1")
                return power if abs(power) <= MAX_POWER else None
            if kind == "name" and text.lower() in ("squared", "cubed"):
                self._at += 1
                return Fraction(WORD_POWERS[text.lower()])
        return Fraction(1)


def tokens_of(text: str) -> list[tuple[str, str]]:
    """All of ``text`` as tokens; empty when anything in it is none."""
    tokens: list[tuple[str, str]] = []
    at = 0
    text = text.strip()
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None or match.end() == at or len(tokens) > MAX_TOKENS:
            return []
        tokens.append((match.lastgroup or "", match[0].strip()))
        at = match.end()
    return tokens
