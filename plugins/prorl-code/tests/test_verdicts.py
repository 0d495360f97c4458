"""Verdicts on programs, each in a real sandbox."""

from __future__ import annotations

import pytest

from prorl_code.settings import CodeSettings

pytestmark = pytest.mark.asyncio(loop_scope="session")
QUICK = CodeSettings(time_limit_s=1.0, wall_factor=1.0)
LONG = "9" * 5000
ECHO = "print(input())"
THREAD = """
import sys, threading
sys.setrecursionlimit(10**6)
threading.stack_size(1 << 27)
def f(n): return 0 if n == 0 else 1 + f(n - 1)
thread = threading.Thread(target=lambda: print(f(10**5)))
thread.start()
thread.join()
"""
CHILD = """
import subprocess, sys
print(subprocess.run([sys.executable, '-c', 'print(7)'], capture_output=True, text=True).stdout)
"""
PERMUTATION = """
import sys
given, answer, output = (open(name).read().split() for name in sys.argv[1:4])
print(1 if sorted(answer) == sorted(output) else 0)
"""

PASS = {
    "trailing blanks": ("print('1 2  ')\nprint()", "", "1 2\n"),
    "CRLF": ("print('1\\r\\n2\\r\\n', end='')", "", "1\n2\n"),
    "CRLF in what is expected": ("print(1)\nprint(2)", "", "1\r\n2\r\n"),
    "last line without a line end": ("print('1\\n2', end='')", "", "1\n2\n"),
    "an input without a line end": (ECHO, "5", "5\n"),
    "a float to six digits": ("print(0.333333333333)", "", "0.333333\n"),
    "a float by another notation": ("print('1e-3')", "", "0.001\n"),
    "sys.stdout.buffer.write": ("import sys\nsys.stdout.buffer.write(b'7\\n')", "", "7\n"),
    "a 5,000-digit integer, computed": (
        "import sys\nsys.set_int_max_str_digits(0)\nprint(int(input()) + 0)",
        LONG + "\n",
        LONG + "\n",
    ),
    "a 5,000-digit integer, copied": (ECHO, LONG, LONG),
    "right output, then sys.exit(0)": ("import sys\nprint(7)\nsys.exit(0)", "", "7\n"),
    "recursion to 10^5 with a raised limit": (
        "import sys\nsys.setrecursionlimit(10**6)\ndef f(n): return 0 if n == 0 else 1 + f(n - 1)\nprint(f(10**5))",
        "",
        "100000\n",
    ),
    "recursion in a thread with a stack of its own": (THREAD, "", "100000\n"),
    "an empty output": ("pass", "", "\n"),
    "words on standard error": ("import sys\nprint('debug', file=sys.stderr)\nprint(7)", "", "7"),
    "main guard": ("if __name__ == '__main__':\n    print(7)", "", "7"),
    "a subprocess that is waited for": (CHILD, "", "7"),
    "unicode": ("print(input())", "größer 数\n", "größer 数\n"),
}
FAIL = {
    "another order": ("print('3 1')", "", "1 3\n", "wrong_answer"),
    "a word too few": ("print('1')", "", "1 3\n", "wrong_answer"),
    "a word too many": ("print('1 3 5')", "", "1 3\n", "wrong_answer"),
    "another case": ("print('yes')", "", "YES\n", "wrong_answer"),
    "an integer off by one, beyond a float's precision": (
        f"print({10**20 + 1})",
        "",
        f"{10**20}\n",
        "wrong_answer",
    ),
    "a float where the problem has none": ("print('3.0')", "", "3\n", "wrong_answer"),
    "a float too far off": ("print(0.33)", "", "0.333333\n", "wrong_answer"),
    "not a number": ("print('nan')", "", "0.333333\n", "wrong_answer"),
    "reading past the end": ("input()\nprint(input())", "1\n", "1\n", "runtime_error"),
    "exit before output": ("import sys\nsys.exit(0)\nprint(7)", "", "7\n", "wrong_answer"),
    "hard exit before the output is flushed": ("import os\nprint(7)\nos._exit(0)", "", "7\n", "wrong_answer"),
    "exit code 1 after the right output": ("import sys\nprint(7)\nsys.exit(1)", "", "7\n", "runtime_error"),
    "an error after the right output": ("print(7, flush=True)\n1 / 0", "", "7\n", "runtime_error"),
    "a signal after the right output": (
        "import os\nprint(7, flush=True)\nos.kill(os.getpid(), 11)",
        "",
        "7\n",
        "runtime_error",
    ),
    "no Python": ("this is no Python", "", "7\n", "runtime_error"),
    "too deep a recursion": ("def f(): return f()\nf()", "", "7\n", "runtime_error"),
    "an output flood": ("while True: print('7' * 1000)", "", "7\n", "output_limit"),
    "a flood of errors": (
        "import sys\nwhile True: sys.stderr.write('7' * 1000)",
        "",
        "7\n",
        "output_limit",
    ),
    "a loop without end": ("while True: pass", "", "7\n", "timeout"),
    "a sleep without end": ("import time\nprint(7, flush=True)\ntime.sleep(1000)", "", "7\n", "timeout"),
    "time spent by its children": (
        "import os\nfor _ in range(4):\n    if os.fork() == 0:\n        while True: pass\nwhile True: pass",
        "",
        "7\n",
        "timeout",
    ),
    "more memory than there is": ("x = bytearray(3 << 30)\nprint(7)", "", "7\n", "memory_limit"),
    "more memory, bit by bit": ("x = []\nwhile True: x.append(bytearray(1 << 20))", "", "7\n", "memory_limit"),
}


@pytest.mark.parametrize("name", PASS)
async def test_passes(court, name):
    source, given, expected = PASS[name]
    judged = await court.judge(source, (given, expected))
    assert judged.outcome == "passed", judged.reason


@pytest.mark.parametrize("name", FAIL)
async def test_fails(court, name):
    source, given, expected, outcome = FAIL[name]
    settings = QUICK if outcome == "timeout" else CodeSettings(memory_mb=256)
    judged = await court.judge(source, (given, expected), settings=settings)
    assert (judged.outcome, judged.passed) == (outcome, 0), judged.reason
    assert judged.reason.startswith("test 1 of 1: " + outcome.replace("_", " "))


async def test_a_checker_takes_any_order(court):
    assert (await court.judge("print('3 1')", ("", "1 3\n"), checker=PERMUTATION)).outcome == "passed"
    judged = await court.judge("print('3 2')", ("", "1 3\n"), checker=PERMUTATION)
    assert (judged.outcome, judged.passed) == ("wrong_answer", 0)
    assert "the checker says 0" in judged.reason


async def test_early_stop_and_all_tests(court):
    tests = [(f"{n}\n", f"{n}\n") for n in range(6)]
    source = "n = int(input())\nprint(n if n != 2 else 99)"
    stopped = await court.judge(source, *tests)
    assert (stopped.tests, stopped.run, stopped.passed, stopped.failed) == (6, 3, 2, 3)
    assert 'word 1 is "99", not "2"' in stopped.reason
    assert "'2\\n'" in stopped.reason
    through = await court.judge(source, *tests, settings=CodeSettings(reward="fraction"))
    assert (through.run, through.passed, through.failed) == (6, 5, 3)
    assert dict(through.outcomes) == {"passed": 5, "wrong_answer": 1}


async def test_a_long_input_is_shortened_in_the_reason(court):
    judged = await court.judge("print(1)", ("7" * 100_000, "2"))
    assert len(judged.reason) < 500
    assert "(100000 characters)" in judged.reason
