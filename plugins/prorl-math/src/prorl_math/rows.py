"""Rows as they come, checked: a question for the model, and the gold answer as LaTeX.

Two forms are told apart by their fields::

    {"problem" | "question": str, "answer": str | number, ...}                                DeepScaleR, MATH-500, AIME
    {"prompt": [{"role", "content"}, ...] | str, "reward_model": {"ground_truth": ...}, ...}  verl
"""

from __future__ import annotations

import math
from typing import Any, cast, get_args

import msgspec

from prorl.api import Message, TaskFault
from prorl.api.llm import Role

QUESTION_FIELDS = ("problem", "question")


class MathTask(msgspec.Struct, frozen=True, kw_only=True):
    messages: tuple[Message, ...]
    gold: str


def read_row(row: dict[str, Any]) -> MathTask:
    """The task in a row of either form. Raises ``TaskFault`` (``bad_row``) that names the field and its fault."""
    if "reward_model" in row or "prompt" in row:
        reward_model = row.get("reward_model")
        if not isinstance(reward_model, dict):
            raise bad("reward_model", "must be an object with a ground_truth", reward_model)
        gold = read_gold("reward_model.ground_truth", reward_model.get("ground_truth"))
        return MathTask(messages=read_prompt(row.get("prompt")), gold=gold)
    for field in QUESTION_FIELDS:
        if field in row:
            message = Message(role="user", content=read_text(field, row[field]))
            return MathTask(messages=(message,), gold=read_gold("answer", row.get("answer")))
    raise TaskFault(
        "not a mathematics row: it needs problem (or question) and answer, or verl's prompt and reward_model; "
        f"it has {', '.join(sorted(row)) or 'nothing'}",
        code="bad_row",
    )


def read_prompt(prompt: object) -> tuple[Message, ...]:
    if isinstance(prompt, str):
        return (Message(role="user", content=read_text("prompt", prompt)),)
    if not isinstance(prompt, list) or not prompt:
        raise bad("prompt", "must be a string or a list of messages", prompt)
    messages = []
    for index, message in enumerate(prompt):
        where = f"prompt[{index}]"
        if not isinstance(message, dict):
            raise bad(where, "must be an object with role and content", message)
        role = message.get("role")
        if role not in get_args(Role):
            raise bad(f"{where}.role", f"must be one of {', '.join(get_args(Role))}", role)
        messages.append(Message(role=cast("Role", role), content=read_text(f"{where}.content", message.get("content"))))
    if messages[-1].role != "user":
        raise bad(f"prompt[{len(messages) - 1}].role", "the last message must be the user's", messages[-1].role)
    return tuple(messages)


def read_text(field: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise bad(field, "must be text that is not empty", value)
    return value


def read_gold(field: str, value: object) -> str:
    """The gold answer as LaTeX. Data sets keep whole numbers as floats: 142.0 is 142."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise bad(field, "must be text or a number", value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise bad(field, "must be a finite number", value)
        return str(int(value)) if value.is_integer() else f"{value:.17g}" if "e" in repr(value) else repr(value)
    return read_text(field, str(value)).strip()


def bad(field: str, problem: str, value: object) -> TaskFault:
    found = "it is missing" if value is None else f"it is {value!r:.80}"
    return TaskFault(f"{field} {problem}; {found}", code="bad_row")
