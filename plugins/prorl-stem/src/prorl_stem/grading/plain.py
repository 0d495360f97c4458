# ruff: noqa: RUF001, RUF002 - look-alikes are what this file is about
"""Answers as plain text: LaTeX's and Unicode's ways of writing a number, a unit or a formula brought to one form.

Nothing is evaluated. ``6.022\\times10^{23}\\ \\mathrm{mol^{-1}}`` and ``6.022×10²³ mol⁻¹`` both become
``6.022*10^23 mol^-1``.
"""

from __future__ import annotations

import re

SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉₋₊", "0123456789-+")
SUPERSCRIPT_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺]+")
SUBSCRIPT_RUN = re.compile("[₀₁₂₃₄₅₆₇₈₉₋₊]+")
SIGNS = str.maketrans(
    {
        "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "×": "*", "·": "*", "⋅": "*", "∙": "*", "÷": "/", "∕": "/",
        "μ": "µ", "Ω": "Ω", "Å": "Å", "℃": "°C", "℉": "°F", "º": "°", "˚": "°", "′": "'", "″": '"', "’": "'", "＝": "=",
        "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u200b": "", "~": " ", "≃": "≈", "≅": "≈", "∼": "≈",
    }
)  # fmt: skip
FONTS = re.compile(
    r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mathsf|operatorname|mbox|unit|ce|emph|boldsymbol|rm"
    r"|bf|it)\*?\s*\{([^{}]*)\}"
)
SIUNITX = re.compile(r"\\(?:SI|qty)\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
SPACES = re.compile(r"\\[,;:!> ]|\\(?:q?quad|thinspace|left|right|displaystyle|limits|bigl?|bigr?)\b|\{\}")
SCRIPT = re.compile(r"\^\s*\{\s*([^{}]*?)\s*\}")
FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
DEGREE = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|\\degree\b|\\deg\b")
DEGREE_LETTER = re.compile(r"°\s+(?=[CF]\b)")
COMMANDS = (
    (r"\times", "*"), (r"\cdot", "*"), (r"\div", "/"), (r"\mu", "µ"), (r"\Omega", "Ω"), (r"\AA", "Å"), (r"\aa", "Å"),
    (r"\angstrom", "Å"), (r"\%", "%"), (r"\$", "$"), (r"\pm", "±"), (r"\approx", "≈"), (r"\simeq", "≈"), (r"\sim", "≈"),
    (r"\prime\prime", '"'), (r"\prime", "'"), (r"\circ", "°"), (r"\#", "#"), (r"\&", "&"), (r"\infty", "∞"),
    (r"\Delta", "Δ"), (r"\le", "≤"), (r"\ge", "≥"), (r"\to", "→"), (r"\rightarrow", "→"), (r"\percent", "%"),
)  # fmt: skip
WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
MAX_NESTED = 20


def plain(text: str) -> str:
    """``text`` as plain text; what is no number, unit or formula comes out readable, too."""
    text = unwrap(text)
    text = SIUNITX.sub(r"\1 \2", text)
    text = DEGREE.sub("°", text)
    for pattern, replacement in ((SCRIPT, r"^\1"), (FONTS, r" \1 "), (FRACTION, r"(\1)/(\2)")):
        for _ in range(MAX_NESTED):
            text, changed = pattern.subn(replacement, text)
            if not changed:
                break
    text = text.replace("{,}", "")
    text = SPACES.sub(" ", text)
    for command, sign in COMMANDS:
        text = re.sub(re.escape(command) + ("(?![A-Za-z])" if command[-1].isalpha() else ""), sign, text)
    text = unscripted(text)
    text = SCRIPT.sub(r"^\1", text).translate(SIGNS)
    text = re.sub(r"_\s*\{([^{}]*)\}", r"_\1", text).replace("{", "").replace("}", "")
    text = re.sub(r"µ\s+(?=[A-Za-zΩ])", "µ", DEGREE_LETTER.sub("°", text))
    return " ".join(text.split())


def unscripted(text: str) -> str:
    """Unicode's raised and lowered digits as ``^23`` and ``_2``."""
    text = SUPERSCRIPT_RUN.sub(lambda run: "^{" + run[0].translate(SUPERSCRIPTS) + "}", text)
    return SUBSCRIPT_RUN.sub(lambda run: "_{" + run[0].translate(SUBSCRIPTS) + "}", text)


def unwrap(text: str) -> str:
    """Without surrounding blanks, maths delimiters and a closing full stop."""
    text = text.strip()
    if not text.endswith("..."):
        text = text.rstrip(".").strip()
    for left, right in WRAPPERS:
        inside = text[len(left) : -len(right)]
        if text.startswith(left) and text.endswith(right) and len(text) > len(left) + len(right) and left not in inside:
            return unwrap(inside) if not inside.endswith("\\") else text
    return text


def squashed(text: str) -> str:
    """For comparing two texts letter by letter: plain, without quotes and blanks, but for those between two digits."""
    text = re.sub(r"[_`\"“”]+", "", plain(text).strip("*"))
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)


def words(text: str) -> str | None:
    """``text`` in lower case when it is made of words alone (one of them longer than three letters), else ``None``."""
    text = plain(text).strip("\"'“”*")
    if not re.fullmatch(r"[A-Za-z][A-Za-z'\- ,]*", text) or not re.search(
        r"[A-Za-z]{4,}|\b(?:yes|no)\b", text, re.IGNORECASE
    ):
        return None
    found = re.sub(r"[\s,]+", " ", text).strip().casefold()
    return re.sub(r"^(?:the|an?) ", "", found)


def has_letter_or_digit(text: str) -> bool:
    """Whether there is anything in ``text`` that could be an answer: symbols alone are none."""
    bare = re.sub(r"\\(?:text\w*|math\w*|boxed|left|right|[,;:! ]|q?quad)", " ", text)
    return any(character.isalnum() for character in bare)
