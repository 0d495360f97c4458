"""The answer that a rollout gives: its last box, else its answer line, else what the finish tool was given."""

from __future__ import annotations

import re

from prorl.grading.answers import answer_line, boxes, choice_letter, final_box, without_thinking

HEDGE = re.compile(r"\b(?:or|and)\b|[,;/]")
MAX_BARE_CHARS = 400


def final_answer(text: str, *, finished: bool, boxed_only: bool, choice: bool) -> str | None:
    """``finished``: ``text`` was given to the finish tool, so all of it may be the answer. ``boxed_only``: nothing but
    a box counts. ``None`` when there is no answer."""
    boxed = _last_choice(text) if choice else final_box(text)
    if boxed is not None or boxed_only:
        return boxed.strip() or None if boxed is not None else None
    if (line := answer_line(text)) is not None:
        return line
    bare = without_thinking(text).strip()
    if finished and len(bare) <= MAX_BARE_CHARS:
        return bare or None
    if choice and choice_letter(bare) is not None and len(bare) < 20:
        return bare
    return None


def _last_choice(text: str) -> str | None:
    """Of several boxes the last one; boxes joined by "or", "and" or a comma are one answer that names two."""
    text = without_thinking(text)
    found = boxes(text)
    if len(found) > 1 and not HEDGE.search(text, found[-2].end, found[-1].start):
        return found[-1].content
    return final_box(text)
