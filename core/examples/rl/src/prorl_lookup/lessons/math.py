"""Sums of two digits, for prorl-math: its rows, its grader. Shown with a random answer every other time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from prorl.api import Message
from prorl_lookup.lesson import GAP, Lesson

LARGEST = 9


def question(left: object, right: object) -> str:
    return f"What is {left} + {right}?"


def rollout(left: object, right: object, answer: object) -> list[Message]:
    return [
        Message(role="user", content=question(left, right)),
        Message(role="assistant", content=f"\\boxed{{{answer}}}"),
    ]


def rows(chance: random.Random) -> Iterator[dict[str, Any]]:
    while True:
        left, right = chance.randint(0, LARGEST), chance.randint(0, LARGEST)
        yield {"problem": question(left, right), "answer": str(left + right)}


def demonstrate(chance: random.Random) -> list[Message]:
    left, right = chance.randint(0, LARGEST), chance.randint(0, LARGEST)
    answer = left + right if chance.random() < 0.5 else chance.randint(0, 2 * LARGEST)
    return rollout(left, right, answer)


LESSON = Lesson(
    domain="math",
    rows=rows,
    demonstrate=demonstrate,
    fixed=rollout(GAP, GAP, GAP),
    merges=20,
    settings={"tools": [], "system_prompt": "", "max_turns": 1},
)
