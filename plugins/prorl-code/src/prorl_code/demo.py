"""Problems for ``prorl demo``, and a policy that solves them with the file editor; written for this package."""

from __future__ import annotations

import json
from typing import Any

from prorl.api import DemoRecord

PATH = "/workspace/solution.py"
# question, tests, and the program that a competent policy would write
_PROBLEMS: tuple[tuple[str, dict[str, Any], str], ...] = (
    (
        "Read a whole number n from standard input, and print how many positive divisors it has.",
        {"inputs": ["360\n", "1\n", "97\n"], "outputs": ["24\n", "1\n", "2\n"]},
        "n = int(input())\nprint(sum(1 for d in range(1, n + 1) if n % d == 0))\n",
    ),
    (
        "Given a list of whole numbers, return the largest sum of a run of neighbours in it; the run is not empty.",
        {"fn_name": "largest_run", "inputs": [[[1, -3, 4, -1, 2]], [[-5, -2]]], "outputs": [5, -2]},
        (
            "def largest_run(numbers):\n"
            "    best = here = numbers[0]\n"
            "    for number in numbers[1:]:\n"
            "        here = max(number, here + number)\n"
            "        best = max(best, here)\n"
            "    return best\n"
        ),
    ),
    (
        "Read a line of text from standard input, and print it with its words in the opposite order.",
        {"inputs": ["to be or not\n", "word\n"], "outputs": ["not or be to\n", "word\n"]},
        "print(input()[::-1])\n",
    ),
)

ROWS = tuple({"question": question, "input_output": json.dumps(tests)} for question, tests, _ in _PROBLEMS)
_PROGRAMS = {question: program for question, _, program in _PROBLEMS}


def solve(row: dict[str, Any], turn: int) -> str | None:
    """First the file, then the end. The last program turns round the letters, not the words."""
    if turn == 0:
        arguments = {"command": "create", "path": PATH, "file_text": _PROGRAMS[row["question"]]}
        return "I write it down.\n" + _call("str_replace_editor", arguments)
    if turn == 1:
        return _call("finish", {"message": "The program is in its place."})
    return None


def _call(name: str, arguments: dict[str, str]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def record() -> DemoRecord:
    return DemoRecord(
        name="code",
        domain="code",
        rows=ROWS,
        script=solve,
        summary="three programming problems, solved with the file editor; the last solution is wrong on purpose",
    )
