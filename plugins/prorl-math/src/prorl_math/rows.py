"""Rows as they come, checked: a question for the model, and the gold answer as text.

The form is found by a row's fields; :data:`ANSWERS` and :data:`QUESTIONS` say which names count, in any case::

    verl, DAPO    prompt: text or messages; reward_model.ground_truth: text or number (or a list of one)
    answer        problem, question or prompt; answer, expected_answer, final_answer or target
    GSM8K         the same; an answer that ends in "#### 42"
    MATH          the same; solution, with the answer in its last \\boxed{}
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, cast, get_args

import msgspec

from prorl.api import Message, TaskFault
from prorl.api.llm import Role
from prorl.grading.answers import final_box

QUESTIONS = ("problem", "question", "prompt")
ANSWERS = ("answer", "expected_answer", "final_answer", "target")
SOLUTION = "solution"
# what NuminaMath writes where an answer should be
NO_ANSWERS = frozenset({"proof", "notfound", "not found", "n/a"})

Form = Literal["verl", "answer", "gsm8k", "solution"]


class MathTask(msgspec.Struct, frozen=True, kw_only=True):
    messages: tuple[Message, ...]
    gold: str
    form: Form


def read_row(row: dict[str, Any]) -> MathTask:
    """The task in a row of any form. Raises ``TaskFault`` (``bad_row``) that names the field and its fault."""
    if "reward_model" in row or isinstance(row.get("prompt"), list):
        reward_model = row.get("reward_model")
        if not isinstance(reward_model, dict):
            raise bad("reward_model", "must be an object with a ground_truth", reward_model)
        gold = read_gold("reward_model.ground_truth", reward_model.get("ground_truth"))
        return MathTask(messages=read_prompt(row.get("prompt")), gold=gold, form="verl")
    fields = {name.lower(): name for name in row}
    asked = next((fields[name] for name in QUESTIONS if name in fields), None)
    if asked is None:
        raise TaskFault(
            "not a mathematics row: it needs problem (or question) with answer or solution, or verl's prompt and "
            f"reward_model; it has {', '.join(sorted(row)) or 'nothing'}",
            code="bad_row",
        )
    messages = (Message(role="user", content=read_text(asked, row[asked])),)
    gold, form = find_gold(row, fields)
    return MathTask(messages=messages, gold=gold, form=form)


def find_gold(row: Mapping[str, Any], fields: Mapping[str, str]) -> tuple[str, Form]:
    """The gold answer of a row without reward_model. ``fields``: from lower-case names to the row's own."""
    answered = next((fields[name] for name in ANSWERS if row.get(fields.get(name, "")) is not None), None)
    if answered is not None:
        gold = read_gold(answered, row[answered])
        if gold.lower() in NO_ANSWERS:
            raise bad(answered, "must be an answer that can be compared", gold)
        if "####" not in gold:
            return gold, "answer"
        return read_text(answered, gold.rpartition("####")[2]).strip(), "gsm8k"
    if SOLUTION in fields:
        solution = read_text(fields[SOLUTION], row[fields[SOLUTION]])
        boxed = final_box(solution)
        if not boxed:
            raise bad(
                fields[SOLUTION], r"must have its answer in \boxed{} when there is no answer field", solution[-80:]
            )
        return boxed, "solution"
    raise bad("answer", "must be text or a number", None)


def numbered_rows(path: Path) -> Iterator[tuple[int, MathTask | TaskFault]]:
    """The lines of a JSONL file that are not blank, by number from 1: the task, or what is wrong with the row."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield number, read_row(_object(line))
                except TaskFault as fault:
                    yield number, fault


def _object(line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TaskFault(f"not JSON: {error}", code="bad_row") from error
    if not isinstance(row, dict):
        raise TaskFault(f"a row must be an object, not {type(row).__name__}", code="bad_row")
    return row


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
    """The gold answer as text. Data sets keep whole numbers as floats: 142.0 is 142. A list of one is its member."""
    if isinstance(value, list) and len(value) == 1:
        field, value = f"{field}[0]", value[0]
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
