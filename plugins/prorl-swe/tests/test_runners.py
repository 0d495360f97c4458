"""Suites that are not pytest's: unittest by a program of the repository's own, and any program by its log."""

from __future__ import annotations

import msgspec
import pytest
from courts import prepend

pytestmark = pytest.mark.asyncio(loop_scope="session")
QUICK = {"test_timeout": 8.0, "tests_timeout": 60.0}
RUNTESTS = """
import sys, unittest
sys.path.insert(0, ".")
suite = unittest.defaultTestLoader.loadTestsFromNames(["tests." + label for label in sys.argv[2:]])
result = unittest.TextTestRunner(verbosity=int(sys.argv[1])).run(suite)
sys.exit(not result.wasSuccessful())
"""
TESTS = """
import os, time, unittest
import jwt
class Tests(unittest.TestCase):
    def test_wrong(self):
        with self.assertRaises(jwt.InvalidIssuerError):
            jwt.decode(jwt.encode({"iss": "urn:"}, "x"), "x", issuer="urn:expected", algorithms=["HS256"])
    def test_right(self): jwt.encode({}, "x")
    def test_described(self):
        \"\"\"What it is about.\"\"\"
    @unittest.skip("not here")
    def test_skipped(self): ...
    @unittest.expectedFailure
    def test_expected(self): self.fail()
    def test_part(self):
        with self.subTest(): self.fail()
    def test_teardown(self): self.addCleanup(lambda: 1 / 0)
    def test_hangs(self): time.sleep(1000)
    def test_exits(self): os._exit(0)
"""


def added(path: str, text: str) -> str:
    lines = text.strip("\n").split("\n")
    head = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
    return f"{head}@@ -0,0 +1,{len(lines)} @@\n" + "".join(f"+{line}\n" for line in lines)


def unittest_row(jwt):
    return msgspec.structs.replace(
        jwt.some,
        runner="unittest",
        test_command="python ./tests/runtests.py 2",
        test_files=("tests/test_unit.py",),
        test_patch=added("tests/runtests.py", RUNTESTS) + added("tests/test_unit.py", TESTS),
        fail_to_pass=("test_wrong (tests.test_unit.Tests)",),
        pass_to_pass=("test_right (tests.test_unit.Tests)", "What it is about."),
    )


async def test_unittest_by_a_program_of_its_own(jwt):
    graded = await jwt.grade(jwt.gold, unittest_row(jwt), **QUICK)
    assert graded.verdict.resolved, (graded.verdict.reason, graded.log)
    found = {name.removesuffix(" (tests.test_unit.Tests)"): outcome for name, outcome in graded.report.outcomes.items()}
    assert {name: found[name] for name in found if name.startswith("test_") and " " not in name} == {
        "test_wrong": "passed",
        "test_right": "passed",
        "test_described": "passed",
        "test_skipped": "skipped",
        "test_expected": "xfailed",
        "test_part": "failed",
        "test_teardown": "error",
        "test_hangs": "timeout",
        "test_exits": "crashed",
    }
    graded = await jwt.grade(b"", unittest_row(jwt), **QUICK)
    assert graded.verdict.f2p_failed == ("test_wrong (tests.test_unit.Tests)",)
    assert graded.verdict.p2p_broken == ()


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.write(2, b'test_wrong (tests.test_unit.Tests) ... ok\\n'); os._exit(0)",
        "import unittest; unittest.TestCase.run = lambda self, result=None: result.addSuccess(self)",
        "import unittest; unittest.TestCase.assertRaises = unittest.TestCase.subTest",
        "import unittest; unittest.TestResult.addFailure = unittest.TestResult.addSuccess",
        "import unittest; unittest.TestCase.__unittest_expecting_failure__ = True",
    ],
)
async def test_unittest_attacked(jwt, code):
    graded = await jwt.grade(await jwt.patch(prepend("jwt/__init__.py", f"{code}\n")), unittest_row(jwt), **QUICK)
    assert not graded.verdict.resolved
    assert not graded.verdict.f2p_passed


async def test_a_program_by_its_log(jwt):
    row = msgspec.structs.replace(
        jwt.some,
        runner="log",
        log_format="pytest",
        test_command="python -m pytest -rA",
        test_files=("tests/test_api_jwt.py",),
    )
    graded = await jwt.grade(jwt.gold, row)
    assert graded.verdict.resolved, graded.verdict.reason
    assert not (await jwt.grade(b"", row)).verdict.resolved
    broken = await jwt.patch(prepend("jwt/__init__.py", "import os; os._exit(0)\n"))
    assert not (await jwt.grade(broken, row)).verdict.resolved
