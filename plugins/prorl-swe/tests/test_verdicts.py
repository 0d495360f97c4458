"""Verdicts on real repositories, their real bugs, repairs and tests."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from courts import prepend, replace

from prorl.api import GraderFault

pytestmark = pytest.mark.asyncio(loop_scope="session")
OTHER = "tests/test_api_jwt.py::TestJWT::test_new_one"


def with_test(jwt, body: str, *ids: str, kept: tuple[str, ...] = ()):
    """The row with one more file of tests in its test patch."""
    lines = body.strip("\n").split("\n")
    added = "".join(f"+{line}\n" for line in lines)
    patch = "diff --git a/tests/test_more.py b/tests/test_more.py\nnew file mode 100644\n--- /dev/null\n"
    patch += f"+++ b/tests/test_more.py\n@@ -0,0 +1,{len(lines)} @@\n{added}"
    return msgspec.structs.replace(
        jwt.some,
        test_patch=jwt.some.test_patch + patch,
        fail_to_pass=(*jwt.some.fail_to_pass, *ids),
        pass_to_pass=(*jwt.some.pass_to_pass[:2], *kept),
    )


@pytest.mark.parametrize("name", ["pyflakes", "PyJWT", "python-multipart"])
async def test_gold_repairs_are_worth_it_by_all_of_the_rows_tests(courts, name):
    court = await courts(name)
    graded = await court.grade(court.gold, court.instance)
    assert graded.verdict.resolved, graded.verdict.reason
    assert graded.dropped == ()
    assert set(graded.report.outcomes) >= {*court.instance.fail_to_pass, *court.instance.pass_to_pass}
    assert graded.report.complete
    assert graded.report.tampering == ()


@pytest.mark.parametrize("name", ["pyflakes", "PyJWT"])
async def test_nothing_is_worth_nothing(courts, name):
    court = await courts(name)
    graded = await court.grade(b"", court.some)
    assert not graded.verdict.resolved
    assert graded.verdict.f2p_failed == court.instance.fail_to_pass
    assert graded.verdict.p2p_broken == ()


async def test_a_test_that_hangs_fails_and_the_others_are_graded(courts):
    """python-multipart before its repair does just that."""
    court = await courts("python-multipart")
    graded = await court.grade(b"", court.instance, test_timeout=8.0)
    [hanging] = court.instance.fail_to_pass
    assert graded.report.outcomes[hanging] in ("timeout", "failed")
    assert graded.verdict.f2p_failed == (hanging,)
    assert len(graded.verdict.p2p_kept) >= len(court.instance.pass_to_pass) - 1, graded.verdict.reason
    assert graded.report.complete


async def test_one_of_two_is_not_enough(jwt):
    body = "def test_more():\n    assert 1 == 2"
    graded = await jwt.grade(jwt.gold, with_test(jwt, body, "tests/test_more.py::test_more"))
    assert not graded.verdict.resolved
    assert graded.verdict.f2p_passed == jwt.instance.fail_to_pass
    assert graded.verdict.f2p_failed == ("tests/test_more.py::test_more",)


MIXED = """
import os, time, unittest
import pytest

@pytest.mark.parametrize("text", ["a b", "a - b", "a - c", "ü]", "x[y]::z"])
def test_spaces(text):
    assert text != "a - b"

@pytest.mark.skip(reason="not here")
def test_skipped(): ...

@pytest.mark.xfail
def test_expected(): assert 0

@pytest.mark.xfail(strict=True)
def test_unexpected(): assert 1

def test_now(): pytest.xfail("just so")

@pytest.fixture
def broken():
    yield 1
    raise ValueError("too late")

def test_teardown(broken): ...

def test_hangs(): time.sleep(1000)

def test_exits(): os._exit(0)

class TestCase(unittest.TestCase):
    def test_after(self): self.assertTrue(True)
    @unittest.expectedFailure
    def test_expected(self): self.fail()
    def test_parts(self):
        for part in range(2):
            with self.subTest(part=part): self.assertEqual(part, 0)
"""
SPACES = {"a b": "passed", "a - b": "failed", "a - c": "passed", "\\xfc]": "passed", "x[y]::z": "passed"}


async def test_every_test_has_its_own_outcome_and_its_own_name(jwt):
    at = "tests/test_more.py::"
    ids = [f"{at}test_spaces[{text}]" for text in SPACES]
    names = "skipped expected unexpected now teardown hangs exits missing".split()  # noqa: SIM905
    ids += [f"{at}test_{name}" for name in names]
    ids += [f"{at}TestCase::test_{name}" for name in ("after", "expected", "parts")]
    cut = (f"{at}test_spaces[a -", f"{at}test_spaces[x[y")
    row = with_test(jwt, MIXED, *ids, *cut, kept=(f"{at}test_skipped", f"{at}test_missing"))
    graded = await jwt.grade(jwt.gold, row, test_timeout=5.0)
    found = {name.removeprefix(at): outcome for name, outcome in graded.report.outcomes.items() if at in name}
    spaces = {f"test_spaces[{text}]": outcome for text, outcome in SPACES.items()}
    assert found == spaces | {
        "test_skipped": "skipped",
        "test_expected": "xfailed",
        "test_unexpected": "failed",
        "test_now": "skipped",
        "test_teardown": "error",
        "test_hangs": "timeout",
        "test_exits": "crashed",
        "TestCase::test_after": "passed",
        "TestCase::test_expected": "xfailed",
        "TestCase::test_parts": "failed",
    }
    passed = {name.removeprefix(at) for name in graded.verdict.f2p_passed} - set(jwt.instance.fail_to_pass)
    good = {f"test_spaces[{text}]" for text, outcome in SPACES.items() if outcome == "passed"}
    # A name cut short is as good as the worst that it means.
    assert passed == good | {"test_spaces[x[y", "test_expected", "TestCase::test_after", "TestCase::test_expected"}
    assert graded.verdict.p2p_broken == (f"{at}test_missing",)
    assert f"{at}test_skipped" in graded.verdict.p2p_kept
    assert not graded.verdict.resolved


async def test_a_repair_that_breaks_something_else(jwt):
    edit = replace("jwt/api_jwt.py", "def encode(", "def encodes(")
    graded = await jwt.grade(await jwt.patch(edit, gold=True))
    assert not graded.verdict.resolved
    assert graded.verdict.p2p_broken


async def test_weakened_tests_are_put_back(jwt):
    def edit(tree: Path) -> None:
        file = tree / "tests/test_api_jwt.py"
        file.write_text("def test_nothing(): ...\n")
        (tree / "tests/utils.py").write_text("raise SystemExit")
        (tree / "tests/test_new_one.py").write_text("raise SystemExit")

    graded = await jwt.grade(await jwt.patch(edit, gold=True))
    assert graded.verdict.resolved, graded.verdict.reason
    assert set(graded.dropped) == {"tests/test_api_jwt.py", "tests/utils.py", "tests/test_new_one.py"}
    assert not (await jwt.grade(await jwt.patch(edit))).verdict.resolved


@pytest.mark.parametrize("what", ["deleted", "a link", "a file", "elsewhere"])
async def test_tests_that_are_no_longer_there_are_put_back(jwt, what):
    def edit(tree: Path) -> None:
        (tree / "tests").rename(tree / "moved")
        if what == "a link":
            (tree / "tests").symlink_to("moved")
        elif what == "a file":
            (tree / "tests").write_text("no folder")
        elif what == "elsewhere":
            (tree / "tests").symlink_to("/tmp")
        (tree / "moved/test_api_jwt.py").write_text("")

    graded = await jwt.grade(await jwt.patch(edit, gold=True))
    assert graded.verdict.resolved, graded.verdict.reason


async def test_skips_from_the_code_under_test_are_failures(jwt):
    skips = "    def decode_complete(self, *a, **b): import pytest; pytest.skip('x')\n    def old(\n"
    edit = replace("jwt/api_jwt.py", "    def decode_complete(\n", skips)
    graded = await jwt.grade(await jwt.patch(edit, gold=True))
    assert graded.verdict.p2p_broken
    assert not graded.verdict.resolved


PATHS = {
    "above": "../../tmp/x",
    "absolute": "/tmp/x",
    "git's own": ".git/hooks/post-checkout",
    "git's own, in capitals": "jwt/.GIT/config",
}


@pytest.mark.parametrize("name", PATHS)
async def test_patches_to_other_places_are_none(jwt, name):
    path = PATHS[name]
    patch = f"diff --git a/{path} b/{path}\nnew file mode 100755\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n"
    graded = await jwt.grade(jwt.gold + patch.encode())
    assert not graded.verdict.resolved
    assert "does not apply" in graded.verdict.reason
    assert graded.report is None


@pytest.mark.parametrize("patch", [b"no patch at all", b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-y\n+z\n"])
async def test_a_patch_that_does_not_apply_is_the_agents(jwt, patch):
    graded = await jwt.grade(patch)
    assert not graded.verdict.resolved
    assert "does not apply" in graded.verdict.reason


async def test_a_test_patch_that_does_not_apply_is_not(jwt):
    row = msgspec.structs.replace(jwt.some, test_patch=jwt.some.test_patch.replace("self", "selves"))
    with pytest.raises(GraderFault, match="test patch does not apply") as caught:
        await jwt.grade(jwt.gold, row)
    assert caught.value.code == "test_patch"


async def test_an_environment_without_what_tests_need_is_not(jwt):
    prepared = msgspec.structs.replace(jwt.prepared, python="/usr/bin/false")
    original, jwt.prepared = jwt.prepared, prepared
    try:
        with pytest.raises(GraderFault) as caught:
            await jwt.grade(jwt.gold)
    finally:
        jwt.prepared = original
    assert caught.value.code == "environment"


async def test_the_agent_cannot_have_its_sample_masked(jwt):
    graded = await jwt.grade(await jwt.patch(prepend("jwt/__init__.py", "syntax error\n")))
    assert not graded.verdict.resolved
    assert "no test could be run" in graded.verdict.reason


async def test_nothing_later_is_to_be_read_in_the_agents_sandbox(jwt):
    sandbox = await jwt.open()
    try:
        counted = "log --all --oneline", "reflog", "tag", "stash list", "fsck --unreachable --no-reflogs 2>/dev/null"
        command = "; ".join(f"git {what} | grep -vc '^Checking'" for what in counted)
        done = await sandbox.act("bash", {"command": command}, timeout=60)
    finally:
        await sandbox.stop(grace=0)
    assert done.output.split() == ["1", "0", "0", "0", "0"]
