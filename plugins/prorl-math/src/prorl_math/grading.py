"""Is this answer the gold one? The function that the grader's processes run.

``grade({"gold": str, "answer": str | None}) -> {"verdict": str, "reason": str}``. Without an answer it only says
whether the gold is usable: it must be readable and equal to itself. Verdicts: ``right``, ``wrong``, ``unreadable`` (the
answer), ``bad_gold``, ``good_gold``.

Nothing in here may be called in the server's process: any of it may never return.
"""

from __future__ import annotations

import logging
import re
from typing import Any

import sympy
from math_verify import LatexExtractionConfig, parse, verify

from prorl_math.latex import to_latex
from prorl_math.same import same_function, same_number, same_parts, same_region, unwrap
from prorl_math.units import split_unit

MAX_ANSWER_CHARS = 2000
CHOICE = re.compile(
    r"(?:\\(?:text|textbf|textrm|mathrm|mathbf|bf|rm)\s*\{?\s*)?\(?\s*([A-J])\s*\)?\s*[}.:]*(?=\Z|[^A-Za-z0-9^_+*/=,-])"
)
CHOICE_ALONE = re.compile(r"(?:\\(?:text|textbf|textrm|mathrm|mathbf)\s*\{)?\s*\(?\s*([A-Ja-j])\s*\)?\s*[}.:]*\s*")
WORDS = re.compile(
    r"(?:\\(?:text|textbf|textit|textrm|mathrm|mbox)\s*\{([A-Za-z][A-Za-z' -]+)\}|([A-Za-z]{3,}(?:[ '-]+[A-Za-z]+)*))"
)
CLOCK = re.compile(
    r"(\d{1,2}):(\d{2})(?:\s|\\[ ,;]|~)*(?:\\(?:text|mathrm)\s*\{)?\s*(?:([ap])\.?\s*m\.?\s*\}?)?", re.IGNORECASE
)
PERCENT = re.compile(r"\s*(?:\\?%|\\?\s*\\text\s*\{\s*percent\s*\}|\bpercent)\s*\Z")
COMMAND = re.compile(r"\\(?:text|textbf|textrm|mathrm|mbox|operatorname)\s*\{[^{}]*\}|\\[A-Za-z]+")
ONLY_LATEX = (
    LatexExtractionConfig(boxed_match_priority=0),
)  # math-verify's plain-text form goes through Python's eval


def grade(payload: dict[str, Any]) -> dict[str, Any]:
    logging.disable(logging.ERROR)  # math-verify warns on every call that its own (signal) time-out is off
    gold, answer = payload["gold"], payload.get("answer")
    if answer is None:
        return check_gold(gold)
    if len(answer) > MAX_ANSWER_CHARS:
        return {"verdict": "wrong", "reason": f"the answer has more than {MAX_ANSWER_CHARS} characters"}
    verdict, reason = compare(gold, answer)
    return {"verdict": verdict, "reason": reason}


def check_gold(gold: str) -> dict[str, Any]:
    if not gold.strip():
        return {"verdict": "bad_gold", "reason": "the gold answer is empty"}
    verdict, reason = compare(gold, gold)
    if verdict != "right":
        return {"verdict": "bad_gold", "reason": f"the gold answer {gold!r:.200} does not grade as itself: {reason}"}
    return {"verdict": "good_gold", "reason": "the gold answer can be graded"}


def compare(gold: str, answer: str) -> tuple[str, str]:
    """``(verdict, reason)``. What an answer *is* decides how it is compared: a choice, a word, a time, mathematics."""
    gold, answer = to_latex(gold), to_latex(answer)
    if choice := CHOICE_ALONE.fullmatch(gold):
        if choice[1].isupper():
            return compare_choice(choice[1], answer)
    elif words := words_of(gold):
        same = words == words_of(answer)
        return verdict(same, "the same words" if same else "other words")
    gold_time, time = CLOCK.fullmatch(gold), CLOCK.fullmatch(answer)
    if gold_time and time and (gold_time[3] or time[3]):  # with neither it may be a ratio
        same = same_time(gold_time, time)
        return verdict(same, "the same time" if same else "another time")
    gold, gold_unit = split_unit(gold)
    answer, unit = split_unit(answer)
    if gold_unit and unit and gold_unit != unit:
        return verdict(False, "another unit")
    return compare_mathematics(gold, answer)


def compare_choice(letter: str, answer: str) -> tuple[str, str]:
    """``B`` is also given by ``(B)``, ``\\textbf{(B)}\\ 12`` and ``b``, not by ``B or C``."""
    alone = CHOICE_ALONE.fullmatch(answer)
    labelled = CHOICE.match(answer)
    given = alone[1].upper() if alone else labelled[1] if labelled else None
    if given and not alone and re.search(r"\b(?:or|and)\b", answer):
        return verdict(False, "more than one choice")
    if given is None:
        return "unreadable", "no choice letter in the answer"
    return verdict(given == letter, "the same choice" if given == letter else "another choice")


def compare_mathematics(gold: str, answer: str) -> tuple[str, str]:
    gold_bare, bare = PERCENT.sub("", gold), PERCENT.sub("", answer)
    gold_parsed, parsed = read(gold_bare), read(bare)
    for whose, found in (("gold answer", gold_parsed), ("answer", parsed)):
        if not is_read(found):
            return "unreadable", f"the {whose} cannot be read as mathematics"
    left, right = unwrap(gold_parsed[0]), unwrap(parsed[0])
    same = same_number(left, right)
    if same is False and (gold_bare == gold) != (bare == answer):  # one percent sign: 10% is 10, and 0.1
        same = same_number(left, right * 100) if bare == answer else same_number(left * 100, right)
    if same is None:
        same = same_parts(left, right)
    if same is not None:
        return verdict(same, "the same value" if same else "another value")
    if differ_in_case(gold, answer):
        return verdict(False, "letters differ in case")
    for reason, equal in (
        ("equal by math-verify", lambda: verify(gold_parsed, parsed, strict=True, timeout_seconds=None)),
        ("the same region", lambda: same_region(left, right)),
        ("the same function wherever the gold one is real", lambda: same_function(left, right)),
    ):
        if equal():
            return verdict(True, reason)
    return verdict(False, "not equal")


def verdict(same: bool, reason: str) -> tuple[str, str]:
    return "right" if same else "wrong", reason


def read(text: str) -> list[Any]:
    return parse(rf"\boxed{{{text}}}", ONLY_LATEX, parsing_timeout=None)  # type: ignore[no-any-return]


def is_read(parsed: list[Any]) -> bool:
    """math-verify appends the text itself, which is all there is when it could not be read."""
    return bool(parsed) and isinstance(parsed[0], sympy.Basic | sympy.MatrixBase)


def words_of(text: str) -> str | None:
    match = WORDS.fullmatch(text)
    return " ".join((match[1] or match[2]).casefold().split()) if match else None


def same_time(gold: re.Match[str], time: re.Match[str]) -> bool:
    """By the hands of the clock, and by a.m. and p.m. where both say so."""
    halves = {half.lower() for half in (gold[3], time[3]) if half}
    return (int(gold[1]), gold[2]) == (int(time[1]), time[2]) and len(halves) == 1


def differ_in_case(gold: str, answer: str) -> bool:
    """Whether the letters used as symbols are the same but for their case: ``x`` is not ``X``."""
    letters, others = (set(re.findall("[A-Za-z]", COMMAND.sub(" ", text))) for text in (gold, answer))
    return letters != others and {c.lower() for c in letters} == {c.lower() for c in others}
