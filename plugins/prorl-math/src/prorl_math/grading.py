"""Is this answer the gold one? The function that the grader's processes run.

``grade({"gold": str, "answer": str | None}) -> {"verdict": str, "reason": str}``. Without an answer it only says
whether the gold is usable: it must be readable and equal to itself. Verdicts: ``right``, ``wrong``, ``unreadable`` (the
answer), ``bad_gold``, ``good_gold``.

Nothing in here may be called in the server's process: any of it may never return.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import sympy

from prorl.grading.answers import close, read_number
from prorl_math.forms import FORMS, Verdict, verdict
from prorl_math.latex import to_latex
from prorl_math.reading import readings
from prorl_math.shapes import same
from prorl_math.units import split_unit

MAX_ANSWER_CHARS = 2000
DECIMAL_TOLERANCE = 2e-6
PERCENT = re.compile(r"\s*(?:\\?%|\\?\s*\\text\s*\{\s*percent\s*\}|\bpercent)\s*\Z")


def grade(payload: dict[str, Any]) -> dict[str, Any]:
    gold, answer = payload["gold"], payload.get("answer")
    if answer is None:
        return check_gold(gold)
    if len(answer) > MAX_ANSWER_CHARS:
        return {"verdict": "wrong", "reason": f"the answer has more than {MAX_ANSWER_CHARS} characters"}
    found, reason = compare(to_latex(gold), to_latex(answer))
    return {"verdict": found, "reason": reason}


def check_gold(gold: str) -> dict[str, Any]:
    if not gold.strip():
        return {"verdict": "bad_gold", "reason": "the gold answer is empty"}
    if len(gold) > MAX_ANSWER_CHARS:
        return {"verdict": "bad_gold", "reason": f"the gold answer has more than {MAX_ANSWER_CHARS} characters"}
    text = to_latex(gold)
    found, reason = compare(text, text)
    if found != "right":
        return {"verdict": "bad_gold", "reason": f"the gold answer {gold!r:.200} does not grade as itself: {reason}"}
    return {"verdict": "good_gold", "reason": "the gold answer can be graded"}


def compare(gold: str, answer: str) -> Verdict:
    """What the gold answer *is* decides how it is compared: a choice, words, a time of day, ..., mathematics."""
    for form in FORMS:
        if (found := form(gold, answer)) is not None:
            return found
    gold, gold_unit = split_unit(gold)
    answer, unit = split_unit(answer, expected=gold_unit is not None)
    scale = Fraction(1)
    if gold_unit and unit:
        if gold_unit[:2] != unit[:2]:
            return "wrong", "a unit of something else"
        scale = unit.size / gold_unit.size
    return compare_mathematics(gold, answer, scale)


def compare_mathematics(gold: str, answer: str, scale: Fraction) -> Verdict:
    """``answer`` times ``scale`` is in the gold's unit. 10% is 10, and 0.1."""
    gold_bare, bare = PERCENT.sub("", gold), PERCENT.sub("", answer)
    one_percent_sign = (gold_bare == gold) != (bare == answer)
    hundredth = Fraction(1, 100) if bare != answer else Fraction(100)
    scales = [scale, scale * hundredth] if one_percent_sign else [scale]
    left, right = read_number(gold_bare), read_number(bare)
    if left is not None and right is not None:
        exact = left.denominator == 1 or not re.search(r"[.eE]|\^", gold_bare + bare)
        tolerance = 0.0 if exact and scale == 1 else DECIMAL_TOLERANCE
        equal = any(close(left, right * factor, tolerance) for factor in scales)
        return verdict(equal, "the same number", "another number")
    golds, answers = ([value for value in readings(text) if value is not None] for text in (gold_bare, bare))
    if not golds or not answers:
        return "unreadable", f"the {'gold answer' if not golds else 'answer'} cannot be read as mathematics"
    equal = any(same(one, scaled(other, factor)) for one in golds for other in answers for factor in scales)
    return verdict(equal, "equal", "not equal")


def scaled(value: Any, factor: Fraction) -> Any:
    return value * sympy.Rational(factor) if factor != 1 and isinstance(value, sympy.Expr) else value
