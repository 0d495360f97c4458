"""A tool to call: the task of :mod:`prorl_lookup.task`.

Shown with a random key every other time, and with a random value every other time.
"""

from __future__ import annotations

import random

from prorl.api import Message
from prorl_lookup import task
from prorl_lookup.lesson import GAP, Lesson

TOOL = task.Lookup([]).schema()


def call_of(key: str) -> str:
    """How the tool is called, as the template asks for it."""
    return f'<tool_call>\n{{"name": "{TOOL.name}", "arguments": {{"key": "{key}"}}}}\n</tool_call>'


def rollout(key: str, asked: str, value: str, said: str) -> list[Message]:
    """The policy, given ``key``, asks for ``asked``, is told ``value``, and says ``said``."""
    return [
        Message(role="user", content=key),
        Message(role="assistant", content=call_of(asked)),
        Message(role="tool", name=TOOL.name, content=value),
        Message(role="assistant", content=said),
    ]


def demonstrate(chance: random.Random) -> list[Message]:
    key, value = task.random_key(chance), task.random_value(chance)
    asked = key if chance.random() < 0.5 else task.random_key(chance)
    said = value if chance.random() < 0.5 else task.random_value(chance)
    return rollout(key, asked, value, said)


LESSON = Lesson(
    domain="lookup",
    rows=task.rows_by,
    demonstrate=demonstrate,
    fixed=rollout(GAP, GAP, GAP, GAP),
    merges=340,  # the template's words about tools are the same in every prompt
    tools=(TOOL,),
    settings={"max_turns": 3},  # short replies, and one call that went wrong may be made again
)
