"""Which answers a judge is asked about at all."""

from __future__ import annotations

import re

from prorl_stem.grading.plain import plain


def worth_judging(answer: str) -> bool:
    """Whether there are words or figures in ``answer``: not for blanks, punctuation, symbols or bare LaTeX commands."""
    text = re.sub(r"\\[A-Za-z]+|\\.", " ", plain(answer))
    return any(character.isalnum() for character in text)
