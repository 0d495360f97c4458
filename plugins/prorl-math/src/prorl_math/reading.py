"""LaTeX as sympy objects, by latex2sympy2-extended: the parser that math-verify is built on.

It is used below math-verify because math-verify evaluates text: its plain-text reader is Python's ``eval``, and every
number of its LaTeX reader goes through ``sympy.Number(str)``, which is ``eval`` again. Here numbers are made from their
digits. The process is confined besides, so that a way into ``eval`` that we overlooked raises ``PermissionError``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy
from latex2sympy2_extended.math_normalization import NormalizationConfig, normalize_latex

TIDY = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)
AS_WRITTEN = ConversionConfig(lowercase_symbols=False)
GROUP = re.compile(r"(?<![\d.])(?<!\d,)\d{1,3}(?:,\d{3})+(?!\d|,\d)")
BRACED = re.compile(r"(?:\\left\s*)?\\(?:\{|lbrace).*\\(?:\}|rbrace)", re.DOTALL)
# what a number counts ("3\\text{ apples}"): a unit that units.py does not know
COUNTED = re.compile(
    r"(?<=[\w})!\]])(?:\\[,;: !]|~|\s)*\\(?:text|textrm|mbox|mathrm)\s*\{[^{}\d]*\}(?:\^\{?[23]\}?)?\s*\Z"
)
CHAIN = re.compile(r"(?<![\\<>!])=")
IMAGINARY = re.compile(r"(?<![A-Za-z\\])i(?![A-Za-z])")
DECIMAL_DIGITS = 40
CONDITIONS = (sympy.Gt, sympy.Ge, sympy.Lt, sympy.Le, sympy.Ne, sympy.And)
MAX_DEPTH = 40  # the parser's time is exponential in it


def readings(text: str) -> Iterator[Any]:
    """What ``text`` may mean: ``100,200`` is a number with its thousands set apart, or a list; ``1,000`` a number."""
    joined = GROUP.sub(lambda group: group[0].replace(",", ""), text)
    yield read(joined)
    if joined != text and not re.search(r",0", text):
        yield read(GROUP.sub(lambda group: group[0].replace(",", ", "), text))


def read(text: str) -> Any:
    """The sympy object, or ``None`` when the text is no mathematics."""
    if depth(text) > MAX_DEPTH:
        return None
    tidy = normalize_latex(COUNTED.sub("", text), TIDY)
    steps = CHAIN.split(tidy)
    last_step = [steps[-1]] if len(steps) > 2 and not re.search("[,;]", tidy) else []
    for attempt in (tidy, *last_step):
        value = parse(attempt)
        if value is not None:
            return with_its_words(value, text.strip())
    return None


def with_its_words(value: Any, text: str) -> Any:
    """What the parser drops: that braces give no order (its own set remembers one), and whether it says "and" or "or"
    between inequalities."""
    if not isinstance(value, sympy.FiniteSet):
        return value
    if BRACED.fullmatch(text):
        return sympy.FiniteSet(*value.args)
    words = set(re.findall(r"\b(?:and|or)\b", text))
    if words and value.args and all(isinstance(part, CONDITIONS) for part in value.args):
        return sympy.And(*value.args) if words == {"and"} else sympy.Or(*value.args) if words == {"or"} else value
    return value


def depth(text: str) -> int:
    """How deep brackets stand in brackets."""
    deepest = level = 0
    for character in text:
        level += (character in "([{") - (character in ")]}")
        deepest = max(deepest, level)
    return deepest


def parse(latex: str) -> Any:
    try:
        value = Parser(is_real=not IMAGINARY.search(latex), config=AS_WRITTEN).parse(latex)
    except (PermissionError, MemoryError):
        raise
    except Exception:  # its way to say that it cannot read a text
        return None
    return value if isinstance(value, sympy.Basic | sympy.MatrixBase) else None


class Parser(_Latex2Sympy):  # type: ignore[misc]
    """Numbers without ``eval``, and decimals with all their digits."""

    def parse_number(self, text: str) -> sympy.Number:
        digits = text.replace(",", "")
        if digits.isdecimal():
            return sympy.Integer(int(digits))
        return sympy.Float(digits, max(DECIMAL_DIGITS, len(digits)))
