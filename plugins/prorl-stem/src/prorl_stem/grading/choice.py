"""Multiple choice: the letter that an answer names, or the option whose text it is."""

from __future__ import annotations

from collections.abc import Mapping

from prorl.grading.answers import choice_letter
from prorl_stem.grading.plain import squashed


def chosen(answer: str, options: Mapping[str, str]) -> str | None:
    """The letter; ``None`` for none, for two, and for a text that is not an option's."""
    letter = choice_letter(answer, "".join(options))
    if letter is not None:
        return letter
    said = squashed(answer).casefold()
    matching = [letter for letter, text in options.items() if text.strip() and squashed(text).casefold() == said]
    return matching[0] if len(matching) == 1 else None
