"""``{"inputs": [...], "outputs": [...], "fn_name": ...}``: the form in which APPS, TACO and Eurus-2-RL keep tests.

For a program each input and output is text (TACO has lists of lines, too). For a function an input is a list of
arguments, or one JSON value per line, and an output is the value, the value in a list, or JSON of it.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from prorl_code.rows.problem import LongNumber, Test, bad, loads, no_tests, read_json, read_list, read_table, read_text


class Cases(msgspec.Struct, frozen=True, kw_only=True):
    tests: tuple[Test, ...]
    function: str | None
    wrapped: bool


def read_cases(field: str, value: object) -> Cases:
    table = read_table(field, value)
    inputs, outputs = (read_list(f"{field}.{name}", table.get(name)) for name in ("inputs", "outputs"))
    if len(inputs) != len(outputs):
        raise bad(f"{field}.outputs", f"must be as many as the {len(inputs)} inputs", outputs)
    if not inputs:
        raise no_tests(field)
    pairs = list(enumerate(zip(inputs, outputs, strict=True)))
    function = table.get("fn_name")
    if not function:  # absent, null and "" are all seen in programs' rows
        tests = tuple(
            Test(
                given=read_lines(f"{field}.inputs[{index}]", given),
                expected=read_lines(f"{field}.outputs[{index}]", wanted),
            )
            for index, (given, wanted) in pairs
        )
        return Cases(tests=tests, function=None, wrapped=False)
    name = read_function(f"{field}.fn_name", function)
    tests = tuple(
        Test(given=read_arguments(f"{field}.inputs[{index}]", given), expected=read_value(given, wanted))
        for index, (given, wanted) in pairs
    )
    # Beside text there is JSON of the value itself; only the other form is kept in lists.
    lists = not any(isinstance(given, str) for given in inputs)
    wrapped = lists and all(isinstance(wanted, list) and len(wanted) == 1 for wanted in outputs)
    return Cases(tests=tests, function=name, wrapped=wrapped)


def read_lines(field: str, value: object) -> str:
    if isinstance(value, list):
        return "".join(read_text(f"{field}[{index}]", line, empty=True) + "\n" for index, line in enumerate(value))
    return read_text(field, value, empty=True)


def read_function(field: str, value: object) -> str:
    name = read_text(field, value).strip()
    if not name.isidentifier():
        raise bad(field, "must be the name of a function", value)
    return name


def read_arguments(field: str, value: object) -> str:
    """JSON of the list of arguments."""
    if isinstance(value, str):
        lines = [line for line in value.split("\n") if line.strip()]
        for number, line in enumerate(lines, start=1):
            read_json(f"{field}, line {number},", line)
        return f"[{', '.join(lines)}]"
    if not isinstance(value, list):
        raise bad(field, "must be a list of arguments, or one JSON value per line", value)
    return dumps(value)


def read_value(given: object, wanted: object) -> str:
    """JSON of what a function is to return. Beside arguments in text it is JSON already, or a word that is itself."""
    if isinstance(given, str) and isinstance(wanted, str):
        try:
            loads(wanted)
        except ValueError:
            return dumps(wanted)
        return wanted
    return dumps(wanted)


def dumps(value: Any) -> str:
    """JSON in which a :class:`LongNumber` is the number that it was."""
    if isinstance(value, LongNumber):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(dumps, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(str(key))}: {dumps(item)}' for key, item in value.items())}}}"
    return json.dumps(value)
