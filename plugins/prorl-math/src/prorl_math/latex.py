# ruff: noqa: RUF001 - look-alikes are what this file is about
"""Answers as people type them, rewritten as the LaTeX that math-verify reads. The value never changes."""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

SYMBOLS = {
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": r"\div ", "±": r"\pm ", "∞": r"\infty ",
    "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ",
    "°": r"^\circ ", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "…": r"\ldots ",
    "π": r"\pi ", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "λ": r"\lambda ", "ℝ": r"\mathbb{R}",
    "≡": r"\equiv ", "\u00a0": " ", "\u2009": " ", "\u202f": " ",
    **{chr(0xFF10 + digit): str(digit) for digit in range(10)},
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
PHRASE = re.compile(r"(?:\\(?:text|textbf|mathrm|mbox)\s*\{)?\s*([A-Za-z][A-Za-z -]*?)\s*\}?")
PHRASES = {
    **dict.fromkeys(
        ("no solution", "no solutions", "no real solution", "no real solutions", "empty set"), r"\emptyset"
    ),
    **dict.fromkeys(("all real numbers", "all reals", "all real x", "any real number"), r"\mathbb{R}"),
    "infinity": r"\infty",
    "infinitely many": r"\infty",
}
BOLD = re.compile(r"\\(?:mathbf|boldsymbol|bm|mathsf|textbf|textit)\s*\{([^{}]*)\}")
NUMBER_AS_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mbox)\s*\{([^{}]*\d[^{}]*)\}")
ORDINAL = re.compile(r"(\d)\s*(?:\^\s*\{?\s*)?(?:\\(?:text|textrm|mathrm)\s*\{\s*)?(?:st|nd|rd|th)\s*\}*\Z")
THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|\\[,!;:]|\\ )(?=\d{3}(?!\d))")
MULTIPLE = re.compile(
    r"(\d)(?:\s|\\[ ,;]|~)*(?:\\(?:text|mathrm|mbox)\s*\{\s*)?(thousand|million|billion|trillion)\b\s*\}?",
    re.IGNORECASE,
)
POWERS = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
SET_BUILDER = re.compile(
    r"\\?\{\s*([A-Za-z])\s*(?:\\in\s*(?:\\mathbb\s*\{?\s*R\s*\}?|\\R))?\s*(?::|\||\\mid|\\colon)\s*(.*\1.*?)\s*\\?\}",
    re.DOTALL,
)
LEADING = re.compile(r"(?:=|\\approx|\\displaystyle\b|\*\*|\\therefore)\s*")
TRAILING = re.compile(r"(?:\\[,;:! ]|\\q?quad|\*\*|~|\s)+\Z")
UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
NUMBER_WORDS = {
    **{word: value for value, word in enumerate(UNITS.split())},
    **{word: 10 * value for value, word in enumerate(TENS.split(), 2)},
    "hundred": 100,
    "thousand": 1000,
}
WRAPPERS = (("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))


def to_latex(text: str) -> str:
    """``text`` without outer maths delimiters and a closing full stop, Unicode and plain-text habits as LaTeX."""
    text = "".join(character for character in text if unicodedata.category(character) not in ("Cf", "Cc", "Cs"))
    text = _without_wrapping(text)
    if phrase := PHRASE.fullmatch(text):
        words = " ".join(phrase[1].lower().split())
        if words in PHRASES:
            return PHRASES[words]
        if (number := number_in_words(words)) is not None:
            return str(number)
    text = THOUSANDS.sub(",", text).replace(r"\varnothing", r"\emptyset")
    text = BOLD.sub(r"\1", text) if not PHRASE.fullmatch(text) else text
    if wrapped := NUMBER_AS_TEXT.fullmatch(text):
        text = wrapped[1].strip()
    text = ORDINAL.sub(r"\1", text)
    text = MULTIPLE.sub(lambda found: rf"{found[1]} \times 10^{{{POWERS[found[2].lower()]}}}", text)
    if built := SET_BUILDER.fullmatch(text):
        text = built[2]
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


def _without_wrapping(text: str) -> str:
    """Without delimiters, a leading "=", markdown's stars, and what follows the end of a sentence."""
    before = None
    text = text.strip()
    while text != before:
        before = text
        text = TRAILING.sub("", LEADING.sub("", text, count=1) if LEADING.match(text) else text)
        if not text.endswith("..."):
            text = text.rstrip(".").strip()
        for left, right in WRAPPERS:
            if text.startswith(left) and text.endswith(right) and len(text) > len(left) + len(right):
                inner = text[len(left) : -len(right)]
                text = text if left in inner else inner.strip()  # $1$ and $2$ are two
    return text


def number_in_words(words: str) -> int | None:
    """``twenty-one`` is 21; whole numbers below a million."""
    total, current = 0, None
    for word in words.replace("-", " ").split():
        value = NUMBER_WORDS.get(word)
        if word == "and" and current:
            continue
        if value is None:
            return None
        if value == 100 and current:
            current *= 100
        elif value == 1000 and current and not total:
            total, current = current * 1000, 0
        elif value < 100 and (
            not current or current % 100 == 0 or (current % 10 == 0 and current % 100 >= 20 and value < 10)
        ):
            current = (current or 0) + value
        else:
            return None
    return None if current is None else total + current


def _as_fraction(match: re.Match[str]) -> str:
    whole, fixed, period = match.groups()
    scale = 10 ** len(fixed)
    value = Fraction(int((whole or "0") + fixed), scale) + Fraction(int(period), scale * (10 ** len(period) - 1))
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
