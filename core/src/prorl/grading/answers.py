"""The answer in what a model wrote: its last box, its answer line, the letter of a choice, a plain number.

Pure functions for graders of any domain. All take time linear in the text, whatever it is, evaluate nothing and raise
nothing: they may run in the server's process.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

TAGS = "think|thinking|thought|reasoning"
THOUGHT = re.compile(rf"<({TAGS})>.*?(?:</\1>|\Z)|\[THINK\].*?(?:\[/THINK\]|\Z)", re.DOTALL)
THOUGHT_END = re.compile(rf"\A.*(?:</(?:{TAGS})>|\[/THINK\])", re.DOTALL)

PIECE = re.compile(r"\\{1,2}(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
BARE_BOX = re.compile(r"\\boxed\s+([^\s{}$\\]+)")
BETWEEN = re.compile(r"(?:[\s,;$]|\\[,;! ()\[\]]|\\q?quad\b|\\text\s*\{\s*(?:and|or)\s*\}|\b(?:and|or)\b)*")

ANSWER_LINE = re.compile(
    r"(?:^[ \t>*_#-]*(?:(?:the|my)[ \t]+)?(?:final[ \t]+)?answer(?:[ \t]+is)?[ \t*_]*:"
    r"|\bthe[ \t]+(?:final[ \t]+)?answer[ \t]+is\b:?"
    r"|^####)[ \t*_]*(?:the[ \t]+(?:final[ \t]+)?answer[ \t]+is\b:?[ \t*_]*)?(?P<answer>[^\n]*)",
    re.IGNORECASE | re.MULTILINE,
)
CLOSING = re.compile(r"\.?\s*(?:I hope it is correct\.?)?\s*\Z")

FONT = r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|boldsymbol|bf|rm|mbox)\s*\{?\s*"
CHOICE_LEAD = re.compile(
    r"(?:the\s+)?(?:(?:correct|final)\s+)?(?:answer|option|choice)(?:\s+is)?\s*:?\s*", re.IGNORECASE
)
CHOICE_ALONE = re.compile(rf"(?:{FONT})?[(\[]?\s*([A-Za-z])\s*[)\]]?[\s.:}}]*")
CHOICE_LABEL = re.compile(  # a letter that a mark tells from the first word of a text
    rf"(?:(?:{FONT})?[(\[]\s*([A-Z])\s*[)\]]|(?:{FONT})?([A-Z])\s*[).:}}]|([A-Z])(?=\s+[\d\\$.]|\\))(?P<rest>.*)",
    re.DOTALL,
)
OTHER_NEXT = re.compile(rf"[\s.:}})\]]*(?:or\b|and\b|[,/&;])[\s$]*(?:{FONT})?[\s(\[]*([A-Z])(?![A-Za-z])")
OTHER_LABEL = re.compile(r"[(\[]\s*([A-Z])\s*[)\]]")

DIGIT_SPACES = re.compile(r"(?<=\d)(?:\{,\}|\\[,;!: ]|[\u00a0\u2009\u202f])(?=\d{3})")
GROUPED = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
DECIMAL = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)")
TIMES_TEN = re.compile(
    r"\s*(?:[eE]([+-]?\d{1,6})|(?:\\times|\\cdot|[×·⋅*x])\s*10\s*(?:\^|\*\*)\s*\{?\s*([+-]?\d{1,6})\s*\}?)"  # noqa: RUF001
)
POWER_OF_TEN = re.compile(r"([+-]?)10\s*(?:\^|\*\*)\s*\{?\s*([+-]?\d{1,6})\s*\}?")
FRACTION = re.compile(r"([+-]?)\\[dt]?frac\s*\{\s*([+-]?\d+)\s*\}\s*\{\s*([+-]?\d+)\s*\}|([+-]?\d+)\s*/\s*([+-]?\d+)")
SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺]+")
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
DASHES = str.maketrans({"−": "-", "–": "-", "﹣": "-", "－": "-"})  # noqa: RUF001 - look-alikes are the point
CURRENCY = re.compile(r"^([+-]?)\s*(?:\\?\$|[£€¥])\s*|\s*(?:\\?\$|[£€¥])$")
MAX_DIGITS = 4000  # below CPython's own limit for int(str)
MAX_EXPONENT = 10_000


class Box(NamedTuple):
    """``text[start:end]`` is the whole ``\\boxed{...}``; ``content`` what is in it (in its last inner box, if any)."""

    start: int
    end: int
    content: str


def without_thinking(text: str) -> str:
    """``text`` without its ``<think>`` blocks. A block that is never closed hides the rest; one that is only closed
    (its opening tag belonged to the prompt) hides what is before."""
    return THOUGHT_END.sub("", THOUGHT.sub("", text))


def boxes(text: str) -> list[Box]:
    """The outermost ``\\boxed{}`` and ``\\fbox{}`` that are closed, in order."""
    opened: list[tuple[int, int, bool]] = []
    found: list[Box] = []
    for piece in PIECE.finditer(text):
        if piece[0] == "}":
            if not opened:
                continue
            start, begin, is_box = opened.pop()
            if is_box:
                content = text[begin : piece.start()] if not found or found[-1].start < start else found[-1].content
                while found and found[-1].start > start:
                    found.pop()
                found.append(Box(start, piece.end(), content))
        elif piece[0].endswith("{") and len(piece[0]) != 2:  # "\\{" is a character
            opened.append((piece.start(), piece.end(), len(piece[0]) > 1))
    return found


def final_box(text: str) -> str | None:
    """What ``text`` answers in a box outside any thinking; ``None`` when there is no complete box.

    The last box is the final word. Boxes with nothing but commas, "and", "or" or blanks between them are one answer
    with several parts (``\\boxed{1} and \\boxed{2}`` answers "1, 2"), so a model gains nothing by hedging.
    """
    text = without_thinking(text)
    found = boxes(text)
    if not found:
        bare = BARE_BOX.findall(text)
        return bare[-1] if bare else None
    parts = [found[-1].content]
    for earlier, later in zip(found[-2::-1], found[:0:-1], strict=True):
        if not BETWEEN.fullmatch(text, earlier.end, later.start):
            break
        parts.append(earlier.content)
    return ", ".join(dict.fromkeys(part.strip() for part in reversed(parts)))


def answer_line(text: str) -> str | None:
    """What follows the last "Answer:", "The final answer is" or "####" outside any thinking, to the end of its line;
    ``None`` when there is none, or nothing follows it."""
    lines = [match["answer"] for match in ANSWER_LINE.finditer(without_thinking(text))]
    if not lines:
        return None
    return CLOSING.sub("", lines[-1].strip()).strip(" \t*_") or None


def choice_letter(text: str, letters: str = "ABCDEFGHIJ") -> str | None:
    """The one choice that ``text`` names: ``E`` for ``(E)``, ``e``, ``Option E``, ``E: because`` and
    ``\\textbf{(E)}\\ 12``; ``None`` for none, for two (``B or C``), and for a text that merely begins with a letter."""
    text = text.strip().strip("$*").strip()
    if lead := CHOICE_LEAD.match(text):
        text = text[lead.end() :].strip("$* \t\n")
    if alone := CHOICE_ALONE.fullmatch(text):
        return alone[1].upper() if alone[1].upper() in letters else None
    label = CHOICE_LABEL.fullmatch(text)
    if label is None:
        return None
    letter = label[1] or label[2] or label[3]
    named = [OTHER_NEXT.match(label["rest"]), *OTHER_LABEL.finditer(label["rest"])]
    hedged = any(other and other[1] in letters and other[1] != letter for other in named)
    return letter if letter in letters and not hedged else None


def read_number(text: str) -> Fraction | None:
    """The exact value of a number written plainly: ``-3``, ``8,645.09``, ``$5``, ``6.022e23``, ``2 \\times 10^{23}``,
    ``3/4``, ``\\frac{3}{4}``; ``None`` for anything else, words and units included, and beyond 4000 digits."""
    text = text.strip().strip("$").strip().translate(DASHES)
    text = CURRENCY.sub(lambda match: match[1] or "", text, count=1)
    text = SUPERSCRIPT.sub(lambda match: "^" + match[0].translate(SUPERSCRIPTS), DIGIT_SPACES.sub("", text)).strip()
    if len(text) > MAX_DIGITS:
        return None
    if match := FRACTION.fullmatch(text):
        above, below = int(match[2] or match[4]), int(match[3] or match[5])
        return Fraction(-above if match[1] == "-" else above, below) if below else None
    if match := POWER_OF_TEN.fullmatch(text):
        return _scaled(Fraction(-1 if match[1] == "-" else 1), match[2])
    for form in (GROUPED, DECIMAL):
        if match := form.match(text):
            value = Fraction(match[0].replace(",", "").removesuffix("."))
            rest = text[match.end() :]
            if not rest:
                return value
            if scale := TIMES_TEN.fullmatch(rest):
                return _scaled(value, scale[1] or scale[2])
    return None


def close(left: Fraction, right: Fraction, relative: float) -> bool:
    """Whether two numbers differ by at most ``relative`` of the larger one; at 0, only equal ones are close."""
    return abs(left - right) <= Fraction(relative) * max(abs(left), abs(right))


def _scaled(value: Fraction, exponent: str) -> Fraction | None:
    power = int(exponent)
    return value * Fraction(10) ** power if abs(power) <= MAX_EXPONENT else None
