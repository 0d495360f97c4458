"""Rows as they come, checked: a question for the model, the gold answer, and the options of a multiple choice.

::

    {"problem" | "question": str, "answer" | "expected_answer": str | number, "unit"?: str, "options" | "choices"?: ...}
    {"prompt": [{"role", "content"}, ...] | str, "reward_model": {"ground_truth": ...}, ...}                    verl
    {"responses_create_params": {"input": [...]}, "expected_answer": ..., "options"?: [{"A": str}, ...], ...}   NeMo Gym
    {"problem": str, "matched_solution": str, ...}                     SCP-116K: first `prorl stem extract` its answers
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast, get_args

import msgspec

from prorl.api import ConfigError, Message, TaskFault
from prorl.api.llm import Role
from prorl.grading.answers import final_box
from prorl_stem.grading.choice import chosen

QUESTION_FIELDS = ("problem", "question")
GOLD_FIELDS = ("answer", "expected_answer", "correct_answer")
OPTION_FIELDS = ("options", "choices")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
STRICT_MODES = ("strict_single_letter_boxed",)


class StemTask(msgspec.Struct, frozen=True, kw_only=True):
    """``question`` is what was asked, for graders; ``options`` by letter, none when it is no multiple choice.
    ``boxed_only``: the row says that nothing but a box counts."""

    messages: tuple[Message, ...]
    question: str
    gold: str
    options: dict[str, str] = {}
    boxed_only: bool = False


def read_row(row: dict[str, Any]) -> StemTask:
    """The task in a row of any form. Raises ``TaskFault`` (``bad_row``) that names the field and its fault."""
    if "reward_model" in row:
        reward_model = row["reward_model"]
        if not isinstance(reward_model, dict):
            raise bad("reward_model", "must be an object with a ground_truth", reward_model)
        messages = read_messages("prompt", row.get("prompt"))
        return _task(row, messages, "reward_model.ground_truth", reward_model.get("ground_truth"))
    if "responses_create_params" in row:
        params = row["responses_create_params"]
        if not isinstance(params, dict):
            raise bad("responses_create_params", "must be an object with an input", params)
        messages = read_messages("responses_create_params.input", params.get("input"))
        field, gold = _gold_field(row)
        return _task(row, messages, field, gold)
    for name in QUESTION_FIELDS:
        if name in row:
            question = read_text(name, row[name])
            field, gold = _gold_field(row)
            return _task(row, (Message(role="user", content=question),), field, gold, show_options=True)
    raise TaskFault(
        "not a STEM row: it needs problem (or question) and answer, verl's prompt and reward_model, or "
        f"responses_create_params and expected_answer; it has {', '.join(sorted(row)) or 'nothing'}",
        code="bad_row",
    )


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSONL file with their line numbers. Raises ``ConfigError`` that names the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield number, msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ConfigError(f"{path}: line {number}: not a JSON object: {error}") from error


def _task(
    row: dict[str, Any], messages: tuple[Message, ...], field: str, gold: object, *, show_options: bool = False
) -> StemTask:
    options = read_options(row)
    asked = next((row[name] for name in QUESTION_FIELDS if isinstance(row.get(name), str)), messages[-1].content)
    if options:
        answer = read_choice(field, gold, options)
        if show_options and not all(text in asked for text in options.values()):
            listed = "\n".join(f"{letter}: {text}" for letter, text in options.items())
            messages = (*messages[:-1], Message(role="user", content=f"{messages[-1].content}\n\n{listed}"))
    else:
        answer = read_gold(field, gold)
        answer = final_box(answer) or answer
        if (unit := row.get("unit")) is not None:
            answer = f"{answer} {read_text('unit', unit)}"
    return StemTask(
        messages=messages,
        question=asked,
        gold=answer,
        options=options,
        boxed_only=row.get("grading_mode") in STRICT_MODES,
    )


def _gold_field(row: Mapping[str, Any]) -> tuple[str, object]:
    for field in GOLD_FIELDS:
        if row.get(field) is not None:
            return field, row[field]
    if "matched_solution" in row:
        raise TaskFault(
            "answer is missing: the row has only a matched_solution. Draw the answers out first: "
            "prorl stem extract ROWS.jsonl --out GRADED.jsonl",
            code="bad_row",
        )
    return GOLD_FIELDS[0], None


def read_messages(field: str, prompt: object) -> tuple[Message, ...]:
    if isinstance(prompt, str):
        return (Message(role="user", content=read_text(field, prompt)),)
    if not isinstance(prompt, list) or not prompt:
        raise bad(field, "must be a string or a list of messages", prompt)
    messages = []
    for index, message in enumerate(prompt):
        where = f"{field}[{index}]"
        if not isinstance(message, dict):
            raise bad(where, "must be an object with role and content", message)
        role = "system" if message.get("role") == "developer" else message.get("role")
        if role not in get_args(Role):
            raise bad(f"{where}.role", f"must be one of {', '.join(get_args(Role))}", role)
        messages.append(Message(role=cast("Role", role), content=read_text(f"{where}.content", message.get("content"))))
    if messages[-1].role != "user":
        raise bad(f"{field}[{len(messages) - 1}].role", "the last message must be the user's", messages[-1].role)
    return tuple(messages)


def read_options(row: Mapping[str, Any]) -> dict[str, str]:
    """``{"A": text}`` from an object, a list of one-key objects, or a list of texts."""
    field = next((name for name in OPTION_FIELDS if row.get(name) is not None), None)
    if field is None:
        return {}
    value = row[field]
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list) and value and all(isinstance(item, dict) and len(item) == 1 for item in value):
        pairs = [pair for item in value for pair in item.items()]
    elif isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        pairs = list(zip(LETTERS, value, strict=False))
    else:
        raise bad(field, "must be an object of letters, a list of such, or a list of texts", value)
    options: dict[str, str] = {}
    for letter, text in pairs:
        if not isinstance(letter, str) or len(letter) != 1 or letter not in LETTERS or letter in options:
            raise bad(field, "must have each capital letter once as its key", letter)
        options[letter] = read_text(f"{field}.{letter}", text)
    if len(options) < 2 or len(pairs) > len(LETTERS):
        raise bad(field, f"must hold 2 to {len(LETTERS)} options", value)
    return options


def read_choice(field: str, gold: object, options: Mapping[str, str]) -> str:
    """The gold's letter: given as a letter, as an option's text, or as its position (from 0)."""
    if isinstance(gold, int) and not isinstance(gold, bool) and 0 <= gold < len(options):
        return list(options)[gold]
    text = read_text(field, gold)
    letter = chosen(final_box(text) or text, options)
    if letter is None or letter not in options:
        raise bad(field, f"must be one of the options {', '.join(options)}", gold)
    return letter


def read_gold(field: str, value: object) -> str:
    """The gold answer as text. Data sets keep whole numbers as floats: 142.0 is 142."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise bad(field, "must be text or a number", value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise bad(field, "must be a finite number", value)
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return read_text(field, str(value)).strip()


def read_text(field: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise bad(field, "must be text that is not empty", value)
    return value


def bad(field: str, problem: str, value: object) -> TaskFault:
    found = "it is missing" if value is None else f"it is {value!r:.80}"
    return TaskFault(f"{field} {problem}; {found}", code="bad_row")
