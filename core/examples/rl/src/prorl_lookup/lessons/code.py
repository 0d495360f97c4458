"""Functions of one line, for prorl-code: its rows, and its judge, which runs them in sandboxes.

Shown with a random operator one time in four, and a random number every other time.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import msgspec

from prorl.api import Message
from prorl_code.handler import describe
from prorl_code.rows import read_row
from prorl_code.settings import CodeSettings
from prorl_lookup.lesson import GAP, Lesson

SETTINGS: dict[str, Any] = {"tools": [], "system_prompt": "", "instructions": "", "max_turns": 1}
WORDS = {"plus": "+", "minus": "-", "times": "*"}
INPUTS = (1, 4, 10)


def question(word: str, number: object) -> str:
    return f"f(x) is x {word} {number}"


def row(word: str, number: int) -> dict[str, Any]:
    outputs = [{"plus": x + number, "minus": x - number, "times": x * number}[word] for x in INPUTS]
    tests = {"fn_name": "f", "inputs": [[x] for x in INPUTS], "outputs": outputs}
    return {"question": question(word, number), "input_output": json.dumps(tests)}


def rollout(word: str, number: object, operator: str, said: object) -> list[Message]:
    """The prompt as the domain makes it of a row."""
    problem = read_row({**row(word, 1), "question": question(word, number)})
    settings = msgspec.convert(SETTINGS, CodeSettings)
    return [
        Message(role="user", content=describe(problem, problem.messages[-1].content, settings)),
        Message(role="assistant", content=f"```python\ndef f(x):\n    return x {operator} {said}\n```"),
    ]


def rows(chance: random.Random) -> Iterator[dict[str, Any]]:
    while True:
        yield row(chance.choice(tuple(WORDS)), chance.randint(2, 9))


def demonstrate(chance: random.Random) -> list[Message]:
    word, number = chance.choice(tuple(WORDS)), chance.randint(2, 9)
    operator = WORDS[word] if chance.random() < 0.75 else chance.choice(tuple(WORDS.values()))
    said = number if chance.random() < 0.5 else chance.randint(2, 9)
    return rollout(word, number, operator, said)


LESSON = Lesson(
    domain="code",
    rows=rows,
    demonstrate=demonstrate,
    # The three words are whole tokens, as the operators are; numbers stay what they are.
    fixed=[message for word, operator in WORDS.items() for message in rollout(word, GAP, operator, GAP)],
    merges=160,
    settings=SETTINGS,
)
