"""The answer of a worked solution, where its writer marked it: in a box, or after "the answer is"."""

from __future__ import annotations

import re
from dataclasses import dataclass

from prorl.grading.answers import answer_line, boxes, final_box
from prorl_stem.grading.mentions import prefixes
from prorl_stem.grading.plain import plain, unwrap
from prorl_stem.grading.quantity import read_quantity
from prorl_stem.grading.units import Units

ENDS = re.compile(r"=|\\\\|\\\]|\\end\b|\\quad\s*\\text|(?<=[A-Za-z}$])[.;,](?=\s|$)|\\Rightarrow|\\approx")
MAX_ANSWER_CHARS = 300
MAX_AFTER_CHARS = 120


@dataclass(frozen=True)
class Drawn:
    """``way``: box, line or llm."""

    answer: str
    way: str


@dataclass(frozen=True)
class NotDrawn:
    reason: str


def by_rule(solution: str, units: Units) -> Drawn | NotDrawn:
    """Only what is marked. Several boxes are the answers of several parts: no rule says which one is asked for."""
    found = boxes(solution)
    if found:
        answer = final_box(solution) or ""
        if len({box.content.strip() for box in found}) > 1 and answer.strip() == found[-1].content.strip():
            return NotDrawn("several boxes")
        return _fit(_with_unit(answer, solution[found[-1].end :], units), "box")
    line = answer_line(solution)
    if line is not None:
        return _fit(unwrap(line), "line")
    return NotDrawn("no box and no line that gives the answer")


def _with_unit(answer: str, after: str, units: Units) -> str:
    """A number in a box often has its unit behind it: ``\\boxed{1.6} \\mathrm{~cm}``."""
    number = read_quantity(plain(answer), units)
    if number is None or number.units or number.percent:
        return answer
    rest = after.partition("\n")[0][:MAX_AFTER_CHARS].replace("\\$", " ").replace("$", " ")
    text = plain(ENDS.split(rest, maxsplit=1)[0])
    if text.startswith("%"):
        return f"{answer} \\%"
    found = next(prefixes(text, units), None)
    if found is None or (text.startswith("/") and text[: found[0]].count("/") > 1):  # "/ kJ/mole": a stroke too many
        return answer
    return f"{answer} {text[: found[0]].strip()}"


def _fit(answer: str, way: str) -> Drawn | NotDrawn:
    answer = answer.strip()
    if not answer:
        return NotDrawn("the answer is empty")
    if len(answer) > MAX_ANSWER_CHARS:
        return NotDrawn(f"the answer has more than {MAX_ANSWER_CHARS} characters")
    return Drawn(answer, way)
