"""A repository for ``prorl demo``, and a policy that repairs it. It comes from the package index, like any other row of
its kind; the issue and the tests are those of pyflakes 3.0.1 (MIT licence)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from prorl.api import DemoRecord
from prorl_swe.repository.cache import RepositoryCache
from prorl_swe.rows import read_row
from prorl_swe.settings import SweSettings, SweTable

ISSUE = """\
Augmented assignment that targets `print` crashes the checker

`print += 1` (or `print >>= x`) in a checked file makes pyflakes raise instead of reporting. Any statement that uses \
the name print as the target of an augmented assignment should be checked without a crash.\
"""
TEST_PATCH = """\
diff --git a/pyflakes/test/test_other.py b/pyflakes/test/test_other.py
--- a/pyflakes/test/test_other.py
+++ b/pyflakes/test/test_other.py
@@ -2052,6 +2052,10 @@ class TestIncompatiblePrintOperator(TestCase):
         self.assertEqual(exc.lineno, 4)
         self.assertEqual(exc.col, 0)
\x20
+    def test_print_augmented_assign(self):
+        # nonsense, but shouldn't crash pyflakes
+        self.flakes('print += 1')
+
     def test_print_function_assignment(self):
         \"\"\"
         A valid assignment, tested for catching false positives.
"""
TESTS = "pyflakes/test/test_other.py::TestIncompatiblePrintOperator"
ROW: dict[str, Any] = {
    "problem_statement": ISSUE,
    "instance_id": "pyflakes-3.0.0-demo",
    "repo": "pypi/pyflakes",
    "base_commit": "pyflakes==3.0.0",
    "version": "3.0.0",
    "sdist": "pyflakes-3.0.0.tar.gz",
    "sdist_sha256": "12da339341ba8b9071e185d4717bef732fdb4f4400b9f4a1d0d6bbc362bf7760",
    "test_patch": TEST_PATCH,
    "FAIL_TO_PASS": [f"{TESTS}::test_print_augmented_assign"],
    "PASS_TO_PASS": [
        f"{TESTS}::test_invalid_print_when_imported_from_future",
        f"{TESTS}::test_print_as_condition_test",
        f"{TESTS}::test_print_function_assignment",
        f"{TESTS}::test_print_in_lambda",
        f"{TESTS}::test_print_returned_in_function",
        f"{TESTS}::test_valid_print",
    ],
}
LOOK = "grep -n -A 4 'def AUGASSIGN' pyflakes/checker.py; echo 'print += 1' | python -m pyflakes 2>&1 | tail -n 3"
REPAIR = {
    "command": "str_replace",
    "path": "/testbed/pyflakes/checker.py",
    "old_str": "        self.handleNodeLoad(node.target)\n        self.handleNode(node.value, node)",
    "new_str": (
        "        node.target._pyflakes_parent = node\n"
        "        self.handleNodeLoad(node.target)\n"
        "        self.handleNode(node.value, node)"
    ),
}
CHECK = (
    "echo 'print += 1' | python -m pyflakes && "
    "python -m pytest -q pyflakes/test/test_other.py -k print 2>&1 | tail -n 3"
)


def solve(row: dict[str, Any], turn: int) -> str | None:
    """Reproduces the crash, repairs its cause, runs the tests that are there."""
    del row
    turns = (
        "Where does it crash?\n" + _call("execute_bash", {"command": LOOK}),
        "The target has no parent yet when its load is handled.\n" + _call("str_replace_editor", REPAIR),
        _call("execute_bash", {"command": CHECK}),
        _call(
            "finish", {"message": "The target of an augmented assignment knows its parent before its load is handled."}
        ),
    )
    return turns[turn] if turn < len(turns) else None


def ready() -> None:
    """Have the repository and the environment of its tests in the cache: some ten seconds, the first time."""

    async def prepare() -> None:
        table = SweTable()
        cache = RepositoryCache(table.cache, max_gb=table.cache_gb)
        try:
            (await cache.prepare(read_row(ROW), SweSettings().sandbox)).close()
        finally:
            await cache.close()

    asyncio.run(prepare())


def _call(name: str, arguments: dict[str, str]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def record() -> DemoRecord:
    return DemoRecord(
        name="swe",
        domain="swe",
        rows=(ROW,),
        script=solve,
        summary="a real bug of pyflakes, reproduced, repaired and tested in its repository",
        ready=ready,
    )
