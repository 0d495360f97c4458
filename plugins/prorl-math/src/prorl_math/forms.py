"""Answers that are no formulas: the letter of a choice, words, times of day, numbers in another base, ratios.

Each function answers for golds of its own form, with a verdict and a reason, and says ``None`` about all others.
"""

from __future__ import annotations

import re
from fractions import Fraction

from prorl.grading.answers import choice_letter, read_number

Verdict = tuple[str, str]
FONT = r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{"
CHOICE = re.compile(rf"(?:{FONT})?\s*\(?\s*([A-J])\s*\)?\s*[}}.:]*\s*")
FONT_PAIR = re.compile(rf"{FONT}([^{{}}]*)\}}")
PHRASE = re.compile(r"[^\W\d_][^\W\d_]+(?:[ '’-]+[^\W\d_]+)*\.?")  # noqa: RUF001 - names are written with it
SHORT_WORDS = frozenset({"yes", "no", "odd", "even", "none", "red", "sun", "mon", "tue", "wed", "thu", "fri", "sat"})
CLOCK = re.compile(r"(\d{1,2})(?::(\d{2}))?\s*([ap])?\.?\s*(?:m\.?)?(?:\s*o'clock)?", re.IGNORECASE)
BASE = re.compile(
    rf"(-?)\s*(?:{FONT})?\s*([0-9A-Z]+)\s*\}}?\s*_\s*\{{?\s*(?:{FONT})?\s*(\w+)\s*\}}?\s*\}}?", re.IGNORECASE
)
BASE_NAMES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
              "eleven": 11, "twelve": 12, "sixteen": 16}  # fmt: skip
MOD = re.compile(r"(?:[a-zA-Z]\s*\\equiv\s*)?(-?\d+)\s*(?:\\[;, ]\s*)*\(?\\(?:pmod|bmod|mod)\s*\{?\s*(\d+)\s*\}?\)?")


def choice(gold: str, answer: str) -> Verdict | None:
    """``B`` is also given by ``(B)``, ``\\textbf{(B)}\\ 12`` and ``b``, not by ``B or C`` and not by 12."""
    if not (letter := CHOICE.fullmatch(gold)):
        return None
    given = choice_letter(answer)
    if given is None:
        return "unreadable", "no single letter of a choice in the answer"
    return verdict(given == letter[1], "the same choice", "another choice")


def words(gold: str, answer: str) -> Verdict | None:
    """Words and names, without case; a list of them in any order."""
    expected, given = phrases(gold), phrases(answer)
    if expected is None:
        return None
    if given is None and not FONT_PAIR.search(gold) and len(gold) < 4:
        return None  # three plain letters may be a product
    return verdict(expected == given, "the same words", "other words")


def phrases(text: str) -> list[str] | None:
    """The words of a text answer, sorted; ``None`` when it is a formula. Words outside ``\\text{}`` must look like
    words: four letters or more, a name, or one of a few short ones."""
    marked = bool(FONT_PAIR.search(text))
    text = FONT_PAIR.sub(r" \1 ", text)
    parts = [part.strip() for part in re.split(r"[,;]|\band\b", text) if part.strip()]
    if not parts or not all(PHRASE.fullmatch(part) for part in parts):
        return None
    likely = (
        len(part) > 3 or (part[0].isupper() and part[1:].islower()) or part.lower() in SHORT_WORDS for part in parts
    )
    if not marked and not all(likely):
        return None
    return sorted(" ".join(part.rstrip(".").casefold().replace("’", "'").split()) for part in parts)  # noqa: RUF001


def time_of_day(gold: str, answer: str) -> Verdict | None:
    """``3:30 PM`` is ``15:30``, and ``3:30`` where nothing says which half of the day, not ``3:30 AM``."""
    expected, given = minutes(gold), minutes(answer)
    if expected is None or given is None or not (expected[1] or given[1]):
        return None  # with no half of the day in either it may be a ratio
    (left, left_known), (right, right_known) = expected, given
    same = left == right if left_known and right_known else left % 720 == right % 720
    return verdict(same, "the same time", "another time")


def minutes(text: str) -> tuple[int, bool] | None:
    """Minutes since midnight, and whether the half of the day is known (24-hour times tell theirs from 13:00 on)."""
    text = " ".join(re.sub(r"\\[ ,;]|~", " ", FONT_PAIR.sub(r" \1 ", text)).split()).lower()
    if text in ("noon", "midnight"):
        return (720 if text == "noon" else 0), True
    match = CLOCK.fullmatch(text)
    if match is None or (match[2] is None and match[3] is None):
        return None
    hour, minute = int(match[1]), int(match[2] or 0)
    if hour > (12 if match[3] else 24) or minute > 59:
        return None
    if match[3]:
        return hour % 12 * 60 + minute + (720 if match[3] == "p" else 0), True
    return hour * 60 + minute, hour > 12


def other_base(gold: str, answer: str) -> Verdict | None:
    """A number in a base must be given in it; the base itself may be left out. ``5`` is also given by ``101_2``."""
    expected, given = in_base(gold), in_base(answer)
    if expected is not None:
        digits, base, _ = expected
        if given is None:
            return verdict(
                re.sub(r"\s", "", answer).upper() == digits, "the same digits", "other digits, or another base"
            )
        return verdict(given[:2] == (digits, base), "the same digits", "other digits, or another base")
    number = read_number(gold)
    if given is not None and number is not None:
        return verdict(number == given[2], "the same value", "another value")
    return None


def in_base(text: str) -> tuple[str, int, int] | None:
    """``(digits, base, value)`` of ``101_2``, ``A5_{16}`` or ``101_{\\text{two}}``."""
    match = BASE.fullmatch(text)
    if match is None or not re.search(r"\d", match[2]) or len(match[2]) > 1000:
        return None
    name = match[3].lower()
    base = int(name) if name.isdecimal() and len(name) < 3 else BASE_NAMES.get(name, 0)
    digits = match[2].upper()
    if not 2 <= base <= 36 or any(int(digit, 36) >= base for digit in digits):
        return None
    return match[1] + digits, base, int(match[1] + digits, base)


def ratio(gold: str, answer: str) -> Verdict | None:
    """``2:4:6`` is ``1:2:3``. A ratio of two may be given as a fraction."""
    expected, given = terms(gold), terms(answer)
    if expected is None or len(expected) == 1:
        return None
    if given is not None and len(given) == 1 and len(expected) == 2:
        given = [given[0], Fraction(1)]
    if given is None or len(given) != len(expected):
        return "unreadable", "the answer is no such ratio"
    same = all(one * given[0] == other * expected[0] for one, other in zip(expected, given, strict=True))
    return verdict(same and any(given), "the same ratio", "another ratio")


def terms(text: str) -> list[Fraction] | None:
    numbers = [read_number(part) for part in re.split(r":|\\colon|\\text\{ to \}", text)]
    known = [number for number in numbers if number is not None]
    return known if len(known) == len(numbers) and any(known) else None


def residue(gold: str, answer: str) -> Verdict | None:
    """``1 (mod 3)`` is given by any number that is 1 modulo 3 and says so, and by 1."""
    expected, given = MOD.fullmatch(gold), MOD.fullmatch(answer)
    if expected is None:
        return None
    value, modulus = int(expected[1]), int(expected[2])
    if given is not None and modulus:
        return verdict(
            int(given[2]) == modulus and (int(given[1]) - value) % modulus == 0, "the same residue", "another residue"
        )
    return verdict(read_number(answer) == value, "the same residue", "another residue")


def verdict(same: bool, why: str, why_not: str) -> Verdict:
    return ("right", why) if same else ("wrong", why_not)


FORMS = (choice, time_of_day, other_base, ratio, residue, words)
