"""The data sets' own row forms, each by the fields that tell it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

from prorl.api import Message, TaskFault
from prorl_code.rows.cases import read_arguments, read_cases, read_function
from prorl_code.rows.problem import (
    Problem,
    Test,
    bad,
    no_tests,
    read_json,
    read_list,
    read_positive,
    read_prompt,
    read_table,
    read_text,
)

Format = Literal["auto", "eurus", "apps", "taco", "livecodebench", "codeforces"]
PICKLED = (
    "is pickled, and unpickling runs whatever code is in it: it is refused. Convert the data set once, on a machine "
    "that may be lost, to JSON (json.dumps of the list of tests), or set public_tests_only to be judged on the few "
    "public tests"
)
SECONDS = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:s\b|sec|second)", re.IGNORECASE)
MEGABYTES = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:mb\b|mib\b|megabyte)", re.IGNORECASE)


def read_row(row: dict[str, Any], format: Format = "auto", *, public_tests_only: bool = False) -> Problem:
    """The problem of a row. ``format="auto"`` goes by the fields.

    Raises ``TaskFault`` (``bad_row``) that names the field, and ``GraderFault`` (``no_tests``) for a row without tests.
    """
    name = detect(row) if format == "auto" else format
    if name == "livecodebench":
        return read_livecodebench(row, public_tests_only=public_tests_only)
    return READERS[name](row)


def detect(row: dict[str, Any]) -> str:
    for name, fields in FIELDS.items():
        if all(field in row for field in fields):
            return name
    known = "; ".join(f"{name}: {', '.join(fields)}" for name, fields in FIELDS.items())
    raise TaskFault(
        f"not a row of a known form ({known}); it has {', '.join(sorted(row)) or 'nothing'}", code="bad_row"
    )


def read_eurus(row: dict[str, Any]) -> Problem:
    """PRIME-RL/Eurus-2-RL-Data, and what verl's preprocessing makes of other sets."""
    messages = read_prompt("prompt", row.get("prompt"))
    reward_model = read_table("reward_model", row.get("reward_model"))
    cases = read_cases("reward_model.ground_truth", reward_model.get("ground_truth"))
    return Problem(messages=messages, tests=cases.tests, function=cases.function, wrapped=cases.wrapped)


def read_apps(row: dict[str, Any]) -> Problem:
    """codeparrot/apps and BAAI/TACO, which has limits, too."""
    question = read_text("question", row.get("question"))
    cases = read_cases("input_output", row.get("input_output"))
    return Problem(
        messages=(Message(role="user", content=question),),
        tests=cases.tests,
        function=cases.function,
        wrapped=cases.wrapped,
        starter_code=read_text("starter_code", row.get("starter_code") or "", empty=True),
        time_limit_s=measure(SECONDS, row.get("time_limit")),
        memory_mb=measure(MEGABYTES, row.get("memory_limit")),
    )


def measure(unit: re.Pattern[str], value: object) -> float | None:
    """``2.0 seconds``, ``256 megabytes``; what cannot be read that way is as good as not given."""
    found = unit.match(value) if isinstance(value, str) else None
    return read_positive("limit", float(found[1])) if found and float(found[1]) else None


def read_livecodebench(row: dict[str, Any], *, public_tests_only: bool) -> Problem:
    """livecodebench/code_generation and _lite."""
    question = read_text("question_content", row.get("question_content"))
    cases = read_list("public_test_cases", row.get("public_test_cases"))
    if not public_tests_only:
        cases = [*cases, *read_private(row.get("private_test_cases"))]
    function = None
    metadata = read_table("metadata", row.get("metadata") or {})
    tests = []
    for index, case in enumerate(cases):
        where = f"test {index + 1}"
        if not isinstance(case, dict):
            raise bad(where, "must be an object with input, output and testtype", case)
        given, wanted = (read_text(f"{where}.{name}", case.get(name), empty=True) for name in ("input", "output"))
        called = case.get("testtype") == "functional"
        if index and called != (function is not None):
            raise bad(f"{where}.testtype", "must be that of the tests before", case.get("testtype"))
        if called:
            function = read_function("metadata.func_name", metadata.get("func_name"))
            given = read_arguments(f"{where}.input", given)
            read_json(f"{where}.output", wanted)
        tests.append(Test(given=given, expected=wanted))
    if not tests:
        raise no_tests("public_test_cases" if public_tests_only else "the row")
    return Problem(
        messages=(Message(role="user", content=question),),
        tests=tuple(tests),
        function=function,
        starter_code=read_text("starter_code", row.get("starter_code") or "", empty=True),
    )


def read_private(value: object) -> list[Any]:
    if isinstance(value, str) and value.strip() and value.lstrip()[0] not in "[{":
        raise TaskFault(f"private_test_cases {PICKLED}", code="pickled_tests")
    return read_list("private_test_cases", value)


def read_codeforces(row: dict[str, Any]) -> Problem:
    """open-r1/codeforces. ``interactor`` is a field of our own: the data set describes interaction only in words."""
    parts = [("", "title"), ("", "description"), ("Input", "input_format"), ("Output", "output_format")]
    parts += [("Interaction", "interaction_format"), ("Note", "note")]
    text = [f"{title}\n{row[name]}".strip() for title, name in parts if isinstance(row.get(name), str) and row[name]]
    read_text("description", row.get("description"))
    examples = [case for case in read_list("examples", row.get("examples") or []) if isinstance(case, dict)]
    text += [f"Example input\n{case.get('input')}\nExample output\n{case.get('output')}" for case in examples]
    interactor = read_program("interactor", row.get("interactor"))
    if row.get("interaction_format") and interactor is None:
        raise bad("interactor", "must be a Python program, for the problem is interactive", None)
    checker = read_program("generated_checker", row.get("generated_checker"))
    tests = []
    for field in ("official_tests", "generated_tests"):
        for index, case in enumerate(read_list(field, row.get(field) or [])):
            where = f"{field}[{index}]"
            if not isinstance(case, dict):
                raise bad(where, "must be an object with input and output", case)
            given = read_text(f"{where}.input", case.get("input"), empty=True)
            tests.append(Test(given=given, expected=read_text(f"{where}.output", case.get("output") or "", empty=True)))
    if not tests:
        raise no_tests("official_tests")
    mode = row.get("input_mode") or "stdio"
    if mode not in ("stdio", "file"):
        raise bad("input_mode", "must be stdio or file", mode)
    return Problem(
        messages=(Message(role="user", content="\n\n".join(text)),),
        tests=tuple(tests),
        checker=checker,
        interactor=interactor,
        input_file="input.txt" if mode == "file" else None,
        output_file="output.txt" if mode == "file" else None,
        time_limit_s=read_positive("time_limit", row.get("time_limit")),
        memory_mb=read_positive("memory_limit", row.get("memory_limit")),
    )


def read_program(field: str, value: object) -> str | None:
    if value is None or value == "":
        return None
    source = read_text(field, value)
    try:
        compile(source, field, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise bad(field, f"must be a Python program ({error})", source) from None
    return source


READERS: dict[str, Callable[[dict[str, Any]], Problem]] = {
    "eurus": read_eurus,
    "apps": read_apps,
    "taco": read_apps,
    "codeforces": read_codeforces,
}
FIELDS = {
    "eurus": ("prompt", "reward_model"),
    "livecodebench": ("question_content", "public_test_cases"),
    "codeforces": ("description", "official_tests"),
    "apps": ("question", "input_output"),
}
