"""What the reader of this package cannot read (matrices, sets, integrals, sums), compared by math-verify.

Its parser writes all letters small, so it is not asked where the case of letters tells symbols apart. It may never
return: only a process that can be killed may call it.
"""

from __future__ import annotations

import logging
import re

import sympy
from math_verify import LatexExtractionConfig, parse, verify

from prorl_stem.grading.plain import unwrap

ONLY_LATEX = (LatexExtractionConfig(boxed_match_priority=0),)  # its plain-text form goes through Python's eval
COMMAND = re.compile(r"\\[A-Za-z]+")


def same_mathematics(gold: str, answer: str) -> bool | None:
    """``None`` when one of them cannot be read, or letters differ in case."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns on every call that its signals are off
    gold, answer = unwrap(gold), unwrap(answer)
    letters = {letter for text in (gold, answer) for letter in re.findall("[A-Za-z]", COMMAND.sub(" ", text))}
    if len({letter.lower() for letter in letters}) != len(letters):
        return None
    left, right = (parse(rf"\boxed{{{text}}}", ONLY_LATEX, parsing_timeout=None) for text in (gold, answer))
    if not all(found and isinstance(found[0], sympy.Basic | sympy.MatrixBase) for found in (left, right)):
        return None
    return bool(verify(left, right, strict=True, timeout_seconds=None))
