# ruff: noqa: RUF001 - look-alikes are what this file is about
"""Answers as people type them, rewritten as the LaTeX that math-verify reads. The value never changes."""

from __future__ import annotations

import re
from fractions import Fraction

SYMBOLS = {
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": r"\div ", "±": r"\pm ", "∞": r"\infty ",
    "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ",
    "°": r"^\circ ", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "…": r"\ldots ",
    "π": r"\pi ", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "λ": r"\lambda ", "ℝ": r"\mathbb{R}",
    "£": "", "€": "", "\u00a0": " ", "\u2009": " ",
}  # fmt: skip
TABLE = str.maketrans(SYMBOLS)
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n")
SUPERSCRIPT_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ]+")
ROOT_OF_GROUP = re.compile(r"√\s*\(([^()]*)\)")
ROOT_OF_ONE = re.compile(r"√\s*(\d+(?:\.\d+)?|\\?[A-Za-z]+)")
SQRT_CALL = re.compile(r"(?<![\\A-Za-z])sqrt\(([^()]*)\)")
REPEATING = re.compile(r"(\d*)\.(\d*)\\(?:overline|bar|dot)\s*\{?(\d+)\}?")
MIXED = re.compile(r"\s*(-?)\s*(\d+)(?:\s|\\[ ,;])+(\d+)\s*/\s*(\d+)\s*")
SCIENTIFIC = re.compile(r"(?<![\w.])(-?\d+(?:\.\d+)?)[eE]([+-]?\d+)(?![\w.])")
NO_SOLUTION = re.compile(r"(?:\\text\s*\{)?\s*no\s+(?:real\s+)?solutions?\s*\}?", re.IGNORECASE)
WRAPPERS = (("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))


def to_latex(text: str) -> str:
    """``text`` without outer maths delimiters and a closing full stop, Unicode and plain-text habits as LaTeX."""
    text = text.strip().rstrip(".").strip() if not text.strip().endswith("...") else text.strip()
    for left, right in WRAPPERS:
        if text.startswith(left) and text.endswith(right) and len(text) > len(left) + len(right):
            text = text[len(left) : -len(right)].strip()
    if NO_SOLUTION.fullmatch(text):
        return r"\emptyset"
    if mixed := MIXED.fullmatch(text):
        sign, whole, above, below = mixed.groups()
        text = rf"{sign}{whole}\frac{{{above}}}{{{below}}}"
    text = SUPERSCRIPT_RUN.sub(lambda run: f"^{{{run[0].translate(SUPERSCRIPTS)}}}", text)
    text = ROOT_OF_GROUP.sub(r"\\sqrt{\1}", text)
    text = ROOT_OF_ONE.sub(r"\\sqrt{\1}", text)
    text = SQRT_CALL.sub(r"\\sqrt{\1}", text)
    text = REPEATING.sub(_as_fraction, text)
    text = SCIENTIFIC.sub(r"\1 \\times 10^{\2}", text)
    return text.translate(TABLE).strip()


def _as_fraction(match: re.Match[str]) -> str:
    whole, fixed, period = match.groups()
    scale = 10 ** len(fixed)
    value = Fraction(int((whole or "0") + fixed), scale) + Fraction(int(period), scale * (10 ** len(period) - 1))
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
