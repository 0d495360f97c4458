"""The ``fn_name`` form: a function, or a method of ``class Solution``, called with arguments."""

from __future__ import annotations

import json

import pytest

from prorl_code.settings import CodeSettings

pytestmark = pytest.mark.asyncio(loop_scope="session")
EQUAL = """
class Equal:
    def __eq__(self, other): return True
    def __iter__(self): return iter([])
def f(): return Equal()
"""
LONG = "9" * 5000

PASS = {
    "bare function": ("def f(a, b):\n    return a + b", [1, 2], 3),
    "class Solution": ("class Solution:\n    def f(self, a, b):\n        return a + b", [1, 2], 3),
    "annotations without imports": (
        "class Solution:\n    def f(self, a: List[int], b: Optional[int] = None) -> List[int]:\n        return a[::-1]",
        [[1, 2], None],
        [2, 1],
    ),
    "well-known modules without imports": ("def f(a):\n    return Counter(a).most_common(1)[0][0]", [[1, 2, 2]], 2),
    "tuple for list": ("def f():\n    return (1, (2, 3))", [], [1, [2, 3]]),
    "generator for list": ("def f():\n    return (n for n in range(3))", [], [0, 1, 2]),
    "keys become text": ("def f():\n    return {1: 2}", [], {"1": 2}),
    "a subclass of int": ("import enum\nclass E(enum.IntEnum):\n    A = 3\ndef f():\n    return E.A", [], 3),
    "prints are no answer": ("def f():\n    print('[1, 2]')\n    return 3", [], 3),
    "float in a problem about floats": ("def f():\n    return 0.333333333333", [], 0.333333),
    "whole for float": ("def f():\n    return 2", [], 2.0),
    "float for whole": ("def f():\n    return 2.0", [], 2),
    "null": ("def f():\n    pass", [], None),
    "text": ("def f(s):\n    return s.upper()", ["größe\n"], "GRÖSSE\n"),
    "a main guard that would read": ("def f():\n    return 1\nif __name__ == '__main__':\n    print(input())", [], 1),
}
FAIL = {
    "another order": ("def f():\n    return [2, 1]", [], [1, 2], "wrong_answer"),
    "text for number": ("def f():\n    return '3'", [], 3, "wrong_answer"),
    "float too far off": ("def f():\n    return 0.33", [], 0.333333, "wrong_answer"),
    "not a number": ("def f():\n    return float('nan')", [], 0.5, "wrong_answer"),
    "whole numbers are exact": ("def f():\n    return 10**20 + 1", [], 10**20, "wrong_answer"),
    "no such function": ("def g():\n    return 3", [], 3, "runtime_error"),
    "raises": ("def f():\n    return 1 // 0", [], 3, "runtime_error"),
    "wrong arguments": ("def f(a):\n    return a", [1, 2], 1, "runtime_error"),
    "ends the process": ("import os\ndef f():\n    os._exit(0)", [], 3, "wrong_answer"),
    "never returns": ("def f():\n    while True: pass", [], 3, "timeout"),
    "no JSON value": ("def f():\n    return object()", [], 3, "runtime_error"),
    "a value that holds itself": ("def f():\n    a = []\n    a.append(a)\n    return a", [], [1], "runtime_error"),
    "equal to everything": (EQUAL, [], [1, 2], "wrong_answer"),
    "a list that is equal to everything": (
        "class L(list):\n    def __eq__(self, other): return True\n    __hash__ = None\ndef f():\n    return L([3])",
        [],
        [1, 2],
        "wrong_answer",
    ),
}


async def call(court, source, arguments, expected, **more):
    test = (
        json.dumps(arguments),
        expected if isinstance(expected, str) and more.pop("raw", False) else json.dumps(expected),
    )
    return await court.judge(source, test, function="f", settings=CodeSettings(time_limit_s=3.0), **more)


@pytest.mark.parametrize("name", PASS)
async def test_passes(court, name):
    judged = await call(court, *PASS[name])
    assert judged.outcome == "passed", judged.reason


@pytest.mark.parametrize("name", FAIL)
async def test_fails(court, name):
    *asked, outcome = FAIL[name]
    judged = await call(court, *asked)
    assert (judged.outcome, judged.passed) == (outcome, 0), judged.reason


async def test_numbers_of_any_size(court):
    settings = CodeSettings(time_limit_s=5.0)
    same = await court.judge(
        "def f(n):\n    return n + 1", (f"[{LONG}]", f"1{'0' * 5000}"), function="f", settings=settings
    )
    assert same.outcome == "passed", same.reason
    other = await court.judge(
        "def f(n):\n    return n", (f"[{LONG}]", f"1{'0' * 5000}"), function="f", settings=settings
    )
    assert other.outcome == "wrong_answer"


async def test_the_value_may_stand_without_the_list_that_apps_puts_it_in(court):
    for source in ("def f():\n    return 3", "def f():\n    return [3]"):
        assert (await call(court, source, [], [3], wrapped=True)).outcome == "passed"
    assert (await call(court, "def f():\n    return 3", [], [3])).outcome == "wrong_answer"
