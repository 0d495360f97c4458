"""Programs of the row's that judge: checkers, and interactors at the other end of two pipes."""

from __future__ import annotations

import os
import tempfile

import pytest

from prorl.api import GraderFault, SandboxFault
from prorl_code.settings import CodeSettings

pytestmark = pytest.mark.asyncio(loop_scope="session")
QUICK = CodeSettings(time_limit_s=2.0, wall_factor=1.0)
SUM = """
import sys
given, answer, output = (open(name).read().split() for name in sys.argv[1:4])
a, b = map(int, output)
print(1 if a + b == int(given[0]) else 0)
"""
GUESS = """
import sys
secret = int(open(sys.argv[1]).read())
for turn in range(20):
    guess = int(input())
    if guess == secret:
        print("=", flush=True)
        sys.exit(0)
    print("<" if secret < guess else ">", flush=True)
sys.exit("too many guesses")
"""
BISECT = """
low, high = 0, 1000
while True:
    middle = (low + high) // 2
    print(middle, flush=True)
    said = input()
    if said == "=": break
    low, high = (low, middle - 1) if said == "<" else (middle + 1, high)
"""


async def test_a_checker_sees_input_answer_and_output(court):
    tests = [("10\n", "5 5\n"), ("7\n", "3 4\n")]
    assert (await court.judge("n = int(input())\nprint(1, n - 1)", *tests, checker=SUM)).outcome == "passed"
    judged = await court.judge("n = int(input())\nprint(1, n)", *tests, checker=SUM)
    assert (judged.outcome, judged.failed) == ("wrong_answer", 1)


@pytest.mark.parametrize("output", ["print('no numbers')", "print(1)", "print('9' * 5000, 1)", "pass"])
async def test_an_output_that_the_checker_cannot_read_is_wrong_and_no_fault(court, output):
    judged = await court.judge(output, ("10\n", "5 5\n"), checker=SUM, settings=QUICK)
    assert judged.outcome == "wrong_answer"
    assert "the checker cannot make sense of it" in judged.reason


@pytest.mark.parametrize("checker", ["1 / 0", "print('maybe')", "print(0)\n1 / 0", "while True: pass", "pass"])
async def test_a_checker_that_does_not_take_the_answer_itself_is_a_fault(court, checker):
    with pytest.raises(GraderFault, match="checker fails on the expected answer") as caught:
        await court.judge("print(5, 5)", ("10\n", "5 5\n"), checker=checker, settings=QUICK)
    assert caught.value.code == "checker"
    assert court.alive == 0


async def test_a_checker_is_confined_and_sees_no_candidate(court):
    checker = """
import os, socket, sys
names = sorted(os.listdir('.'))
try:
    socket.create_connection(('1.1.1.1', 53), timeout=1)
    online = True
except OSError:
    online = False
print(1 if names == ['answer.txt', 'input.txt', 'output.txt', 'program.py'] and not online else 0)
"""
    judged = await court.judge("print(5, 5)", ("10\n", "5 5\n"), checker=checker)
    assert judged.outcome == "passed", judged.reason
    assert judged.sandboxes == 2


async def test_input_and_output_files(court):
    files = {"input_file": "input.txt", "output_file": "output.txt"}
    right = "n = int(open('input.txt').read())\nopen('output.txt', 'w').write(str(n + 1))"
    judged = await court.judge(right, *[(f"{n}\n", f"{n + 1}\n") for n in range(3)], **files)
    assert (judged.passed, judged.sandboxes) == (3, 1), judged.reason
    none = await court.judge("print(2)", ("1\n", "2\n"), **files)
    assert "it wrote no output.txt" in none.reason
    link = await court.judge("import os\nos.symlink('/etc/passwd', 'output.txt')", ("1\n", "2\n"), **files)
    assert "it wrote no output.txt" in link.reason


async def test_interaction(court, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tmp_path.chmod(0o711)
    tests = [(f"{secret}\n", "") for secret in (0, 500, 777)]
    judged = await court.judge(BISECT, *tests, interactor=GUESS)
    assert (judged.outcome, judged.passed) == ("passed", 3), judged.reason
    assert not os.listdir(tmp_path)  # noqa: PTH208
    assert court.alive == 0


@pytest.mark.parametrize(
    ("source", "outcome", "said"),
    [
        ("for n in range(30):\n    print(n, flush=True)\n    input()", "wrong_answer", "too many guesses"),
        ("print('what?', flush=True)\ninput()", "wrong_answer", "ValueError"),
        ("pass", "wrong_answer", "EOFError"),
        ("while True: pass", "timeout", ""),
        ("input()", "timeout", ""),  # both wait for each other
        ("while True: print(1, flush=True)", None, ""),
        (BISECT + "import sys; sys.exit(3)", "runtime_error", "exit code 3"),
    ],
)
async def test_interaction_that_goes_wrong(court, source, outcome, said):
    judged = await court.judge(source, ("777\n", ""), interactor=GUESS, settings=QUICK)
    assert judged.passed == 0
    assert outcome in (None, judged.outcome), judged.reason
    assert said in judged.reason


async def test_neither_side_of_the_pipes_sees_the_other(court):
    source = f"""
import os
try:
    open('/run/pipes/c', 'w')
    os._exit(1)
except OSError: pass
assert not any(name == 'answer.txt' for _, _, names in os.walk('/workspace') for name in names)
{BISECT}
"""
    judged = await court.judge(source, ("777\n", "secret"), interactor=GUESS)
    assert judged.outcome == "passed", judged.reason


async def test_no_sandbox_is_a_fault_and_never_a_verdict(court, monkeypatch):
    async def refuse(limits, binds):
        raise SandboxFault("no room", code="start_failed")

    monkeypatch.setattr(court, "open", refuse)
    with pytest.raises(GraderFault, match="no sandbox for the judge: no room") as caught:
        await court.judge("print(1)", ("", "1"))
    assert caught.value.code == "sandbox"


async def test_a_sandbox_that_loses_everything_is_a_fault(court, monkeypatch):
    """Not the candidate's doing: even a program that does nothing is lost."""
    opened = court.open

    async def lossy(limits, binds):
        sandbox = await opened(limits, binds)
        act = sandbox.act

        async def acting(action, arguments, **more):
            if action == "bash":
                arguments = {"command": "kill -9 $$"}
            return await act(action, arguments, **more)

        sandbox.act = acting
        return sandbox

    monkeypatch.setattr(court, "open", lossy)
    with pytest.raises(GraderFault, match="lose even a program that does nothing") as caught:
        await court.judge("print(1)", ("", "1"))
    assert caught.value.code == "sandbox"
    assert court.alive == 0


async def test_a_comparer_that_is_gone_is_a_fault(court, monkeypatch):
    async def gone(payload, timeout):
        raise GraderFault("closed", code="closed")

    monkeypatch.setattr(court._comparers, "grade", gone)
    with pytest.raises(GraderFault, match="closed"):
        await court.judge("print(1)", ("", "1"))
    assert court.alive == 0


async def test_large_inputs_and_outputs(court):
    text = "".join(f"{n} {os.urandom(4).hex()}\n" for n in range(200_000))
    judged = await court.judge("import sys\nsys.stdout.write(sys.stdin.read())", *[(text, text)] * 3)
    assert (judged.passed, judged.tests) == (3, 3), judged.reason
