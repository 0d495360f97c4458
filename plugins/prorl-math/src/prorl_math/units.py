"""Units at the end of an answer. A unit may be left out; two units that are both given must be the same one.

Only to tell "5 cm" from "5 m": nothing is converted here, and a word that is no known unit is ignored.
"""

from __future__ import annotations

import re

SAME = (
    ("mm", "millimeter", "millimetre"),
    ("cm", "centimeter", "centimetre"),
    ("m", "meter", "metre"),
    ("km", "kilometer", "kilometre"),
    ("in", "inch", "inche"),
    ("ft", "foot", "feet"),
    ("yd", "yard"),
    ("mi", "mile"),
    ("s", "sec", "second"),
    ("min", "minute"),
    ("h", "hr", "hour"),
    ("day",),
    ("week",),
    ("year",),
    ("g", "gram"),
    ("kg", "kilogram"),
    ("lb", "pound"),
    ("oz", "ounce"),
    ("ml", "milliliter", "millilitre"),
    ("l", "liter", "litre"),
    ("mph", "mile per hour", "miles per hour", "mi/h"),
    ("km/h", "kph", "kilometer per hour", "kilometers per hour"),
    ("m/s", "meter per second", "meters per second"),
    ("dollar", r"\$"),
    ("cent",),
    ("degree", r"^\circ", r"^{\circ}"),
    ("radian", "rad"),
)
CANONICAL = {name: names[0] for names in SAME for name in names}
TEXT_UNIT = re.compile(
    r"[\d})!]\s*(?:\\[,;: !]|~)*\s*"
    r"\\(?:text|textrm|mathrm|mbox|rm)\s*\{\s*([^{}]*?)\s*\}\s*(\^\s*\{?\s*[23]\s*\}?)?\s*\Z"
)
PLAIN_UNIT = re.compile(
    r"\A(.*\d)\s*(?:\\[,; ]|\s)\s*([A-Za-z]+(?:\s+per\s+[a-z]+|/[a-z]+)?)\s*(\^\s*\{?[23]\}?)?\s*\Z", re.DOTALL
)
POWER_WORDS = {"square ": 2, "sq ": 2, "sq. ": 2, "cubic ": 3, "cu ": 3}


def split_unit(text: str) -> tuple[str, tuple[str, int] | None]:
    """``text`` with its unit in ``\\text{}``, or as it was, and the unit, if known, as ``(name, power)``."""
    if match := TEXT_UNIT.search(text):
        return text, known_unit(match[1], match[2])
    if match := PLAIN_UNIT.match(text):
        unit = known_unit(match[2], match[3])
        if unit is not None:
            return match[1], unit
    return text, None


def known_unit(words: str, power: str | None) -> tuple[str, int] | None:
    name = " ".join(words.lower().split()).rstrip(".")
    exponent = int(re.sub(r"\D", "", power)) if power else 1
    for word, value in POWER_WORDS.items():
        if name.startswith(word):
            name, exponent = name.removeprefix(word), value
    if caret := re.fullmatch(r"(.*?)\s*\^\s*([23])", name):
        name, exponent = caret[1], int(caret[2])
    canonical = CANONICAL.get(name) or CANONICAL.get(name.removesuffix("s"))
    return (canonical, exponent) if canonical else None
