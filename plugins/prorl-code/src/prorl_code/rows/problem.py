"""A programming problem as the judge knows it, whatever data set it came from."""

from __future__ import annotations

import json
from typing import Any, cast, get_args

import msgspec

from prorl.api import GraderFault, Message, TaskFault
from prorl.api.llm import Role

MAX_DIGITS = 4000


class Test(msgspec.Struct, frozen=True, kw_only=True):
    """One test case: what a program reads, or the arguments of a function as a JSON list; what a program is to print,
    or the value of a function as JSON. Text it stays: numbers may have any size."""

    __test__ = False  # not one of pytest's

    given: str
    expected: str


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """``function`` is the name of what is called (``None``: the whole program is run). ``wrapped`` says that every
    expected value stands in a list of its own, as APPS has it, so the value without that list is right, too.
    ``checker`` and ``interactor`` are Python programs of the row's. ``input_file`` and ``output_file`` are named where
    a program reads and writes files. ``time_limit_s`` and ``memory_mb`` are the row's own, ``None`` if it has none.
    """

    messages: tuple[Message, ...]
    tests: tuple[Test, ...]
    function: str | None = None
    starter_code: str = ""
    wrapped: bool = False
    checker: str | None = None
    interactor: str | None = None
    input_file: str | None = None
    output_file: str | None = None
    time_limit_s: float | None = None
    memory_mb: float | None = None


def bad(field: str, problem: str, value: object) -> TaskFault:
    found = "it is missing" if value is None else f"it is {value!r:.80}"
    return TaskFault(f"{field} {problem}; {found}", code="bad_row")


def no_tests(field: str) -> GraderFault:
    return GraderFault(f"{field} has no test: nothing could be judged", code="no_tests")


def read_text(field: str, value: object, *, empty: bool = False) -> str:
    if not isinstance(value, str) or not (empty or value.strip()):
        raise bad(field, "must be text" if empty else "must be text that is not empty", value)
    return value


def read_json(field: str, value: object) -> Any:
    """``value``, decoded if it is text, as data sets keep nested values."""
    if not isinstance(value, str):
        return value
    try:
        return loads(value)
    except (ValueError, RecursionError) as error:
        raise bad(field, f"must be JSON ({error})", value) from None


def loads(text: str) -> Any:
    """JSON, with whole numbers that are too long for an ``int`` of this interpreter as :class:`LongNumber`."""
    return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < MAX_DIGITS else LongNumber(digits))


class LongNumber(str):
    """A whole number as it is written."""

    __slots__ = ()


def read_table(field: str, value: object) -> dict[str, Any]:
    decoded = read_json(field, value)
    if not isinstance(decoded, dict):
        raise bad(field, "must be an object, or JSON of one", value)
    return decoded


def read_list(field: str, value: object) -> list[Any]:
    decoded = read_json(field, value)
    if not isinstance(decoded, list):
        raise bad(field, "must be a list, or JSON of one", value)
    return decoded


def read_positive(field: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
        raise bad(field, "must be a number above 0", value)
    return float(value)


def read_prompt(field: str, prompt: object) -> tuple[Message, ...]:
    """A prompt that is text, or a list of messages whose last is the user's."""
    if isinstance(prompt, str):
        return (Message(role="user", content=read_text(field, prompt)),)
    if not isinstance(prompt, list) or not prompt:
        raise bad(field, "must be text or a list of messages", prompt)
    messages = []
    for index, message in enumerate(prompt):
        where = f"{field}[{index}]"
        if not isinstance(message, dict):
            raise bad(where, "must be an object with role and content", message)
        role = message.get("role")
        if role not in get_args(Role):
            raise bad(f"{where}.role", f"must be one of {', '.join(get_args(Role))}", role)
        messages.append(Message(role=cast("Role", role), content=read_text(f"{where}.content", message.get("content"))))
    if messages[-1].role != "user":
        raise bad(f"{field}[{len(messages) - 1}].role", "of the last message must be user", messages[-1].role)
    return tuple(messages)
