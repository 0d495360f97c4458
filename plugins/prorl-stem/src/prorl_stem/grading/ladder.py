"""The rungs, in order: choice, exact text, number with unit, chemical formula, expression; the first that can tell.

``grade({"gold", "answer", "question", "options", "digits", "relative"}) -> {"verdict", "kind", "rung", "reason"}``.
Verdicts: ``right``, ``wrong``, ``undecided`` (only a judge could tell). ``kind`` is the gold's: ``choice``,
``quantity``, ``formula``, ``expression`` or ``text``. Without an answer it says whether the gold can be graded
(``good_gold``, ``bad_gold``): it must be right as its own answer.

Nothing in here may be called in the server's process: any of it may never return.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from prorl.grading.answers import choice_letter
from prorl_stem.grading import expression, formula
from prorl_stem.grading.choice import chosen
from prorl_stem.grading.fallback import same_mathematics
from prorl_stem.grading.numbers import Tolerance
from prorl_stem.grading.plain import has_letter_or_digit, plain, squashed, words
from prorl_stem.grading.quantity import Quantity, read_quantity, same_quantity
from prorl_stem.grading.reader import Unreadable
from prorl_stem.grading.units import Units

Verdict = Literal["right", "wrong", "undecided"]
MAX_CHARS = 4000
MAX_QUESTION_CHARS = 8_000
OPPOSITES = (("yes", "no"), ("true", "false"), ("increase", "decrease"), ("increases", "decreases"))


@dataclass(frozen=True)
class Graded:
    verdict: Verdict
    kind: str
    rung: str
    reason: str


@cache
def units() -> Units:
    """This process's: making it takes a second."""
    return Units()


def grade(payload: dict[str, Any]) -> dict[str, Any]:
    gold, answer = payload["gold"], payload.get("answer")
    options = payload.get("options") or {}
    tolerance = Tolerance(payload.get("digits") or 3, payload.get("relative"))
    question = plain((payload.get("question") or "")[:MAX_QUESTION_CHARS])
    if answer is None:
        return check_gold(gold, question, options, tolerance)
    if len(answer) > MAX_CHARS:
        return {"verdict": "wrong", "kind": "", "rung": "length", "reason": f"more than {MAX_CHARS} characters"}
    graded = compare(gold, answer, question, options, tolerance)
    return {"verdict": graded.verdict, "kind": graded.kind, "rung": graded.rung, "reason": graded.reason}


def check_gold(gold: str, question: str, options: dict[str, str], tolerance: Tolerance) -> dict[str, Any]:
    if not has_letter_or_digit(gold) and not any(sign in gold for sign in ("∞", "\\infty", "+", "-")):
        return {"verdict": "bad_gold", "reason": "the gold answer is empty"}
    graded = compare(gold, gold, question, options, tolerance)
    if graded.verdict != "right":
        return {"verdict": "bad_gold", "reason": f"the gold {gold!r:.200} does not grade as itself: {graded.reason}"}
    return {"verdict": "good_gold", "kind": kind_of(gold, options), "reason": "the gold answer can be graded"}


def kind_of(gold: str, options: dict[str, str]) -> str:
    if options:
        return "choice"
    text = plain(gold)
    if read_quantity(text, units()) is not None:
        return "quantity"
    if words(gold) is not None:
        return "text"
    if formula.read_formula(gold) is not None:
        return "formula"
    try:
        expression.read_formula(gold)
    except (Unreadable, RecursionError):
        return "expression" if "\\" in gold and same_mathematics(gold, gold) else "text"
    return "expression"


def compare(gold: str, answer: str, question: str, options: dict[str, str], tolerance: Tolerance) -> Graded:
    if options:
        return compare_choices(gold, answer, options)
    if names_a_choice(gold, question) and choice_letter(answer) is not None:
        same = choice_letter(answer) == gold.strip()
        return Graded("right" if same else "wrong", "choice", "choice", "the same choice" if same else "another choice")
    kind = kind_of(gold, options)
    if exact := compare_exactly(gold, answer, kind):
        return exact
    gold_quantity, quantity = (read_quantity(plain(text), units()) for text in (gold, answer))
    if gold_quantity is not None and quantity is not None:
        return compare_quantities(gold_quantity, quantity, question, tolerance)
    if (alike := compare_formulas(gold, answer, kind)) is not None:
        return alike
    return compare_expressions(gold, answer, kind, tolerance, valued=gold_quantity is not None)


def names_a_choice(gold: str, question: str) -> bool:
    """Whether the gold is the letter of a choice that only the question's own text lists: ``(B) neon``, ``B: neon``."""
    letter = gold.strip()
    listed = rf"(?:^|[\s(]){letter}\s*[).:]"
    return re.fullmatch("[A-J]", letter) is not None and re.search(listed, question) is not None


def compare_choices(gold: str, answer: str, options: dict[str, str]) -> Graded:
    letter = chosen(answer, options)
    if letter is None:
        return Graded("wrong", "choice", "choice", "no choice, or more than one")
    same = letter == chosen(gold, options)
    return Graded("right" if same else "wrong", "choice", "choice", "the same choice" if same else "another choice")


def compare_exactly(gold: str, answer: str, kind: str) -> Graded | None:
    """Letter by letter; words also in another case. ``CO`` is not ``Co``."""
    same = plain(gold) == plain(answer) if kind == "quantity" else squashed(gold) == squashed(answer)  # ms is not m s
    if same and has_letter_or_digit(answer):
        return Graded("right", kind, "exact", "the same text")
    mine, theirs = words(gold), words(answer)
    if mine is not None and mine == theirs:
        return Graded("right", kind, "exact", "the same words")
    if mine is not None and theirs is not None:
        for pair in OPPOSITES:
            if {mine, theirs} == set(pair):
                return Graded("wrong", kind, "exact", "the opposite")
    return None


def compare_quantities(gold: Quantity, answer: Quantity, question: str, tolerance: Tolerance) -> Graded:
    same, reason = same_quantity(gold, answer, question, units(), tolerance)
    return Graded("right" if same else "wrong", "quantity", "quantity", reason)


def compare_formulas(gold: str, answer: str, kind: str) -> Graded | None:
    if kind != "formula":
        return None
    mine, theirs = formula.read_formula(gold), formula.read_formula(answer)
    if theirs is None:
        other_case = formula.spelling(gold).casefold() == formula.spelling(answer).casefold()
        return Graded("wrong", "formula", "formula", "letters in another case") if other_case else None
    if mine == theirs:
        return None  # perhaps the same atoms bound otherwise
    return Graded("wrong", "formula", "formula", "other atoms or another charge")


def compare_expressions(gold: str, answer: str, kind: str, tolerance: Tolerance, *, valued: bool) -> Graded:
    try:
        mine, theirs = expression.read_formula(gold), expression.read_formula(answer)
    except (Unreadable, RecursionError):
        if words(answer) is not None or (kind == "text" and "\\" not in gold):
            return Graded("undecided", kind, "none", "not the same words")
        same = same_mathematics(gold, answer)
        if same is None:
            return Graded("undecided", kind, "none", "it cannot be read as mathematics")
        return Graded("right" if same else "wrong", kind, "symbolic", "equal" if same else "not equal")
    same, reason = expression.same_formula(mine, theirs, tolerance)
    if same is None or (kind in ("text", "formula") and not same):
        return Graded("wrong" if valued else "undecided", kind, "symbolic", reason)
    return Graded("right" if same else "wrong", kind, "symbolic", reason)
