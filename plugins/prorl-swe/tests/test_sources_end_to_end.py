"""Rows whose repository is a local clone, or comes in an image, through the real server."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from repairs import FINISH, bash, call
from test_repository_clone import git
from test_repository_image import OF_THE_CORE, rootfs  # noqa: F401 - a fixture

from prorl.client import ServiceError
from prorl.testing.lab import Lab

SECRET = "nobody_must_see_this"
BUG = "def twice(number):\n    return number * 3\n"
FIXED = "def twice(number):\n    return number * 2\n"
HIDDEN = "    assert twice(2) == 4\n"
TEST_PATCH = (
    "diff --git a/test_calc.py b/test_calc.py\n--- a/test_calc.py\n+++ b/test_calc.py\n@@ -3,2 +3,6 @@\n \n"
    f" def test_zero():\n     assert twice(0) == 0\n+\n+\n+def test_two():\n+{HIDDEN}"
).replace("@@ -3,2 +3,6 @@\n \n", "@@ -4,2 +4,6 @@\n")
MEND = call("str_replace_editor", command="str_replace", path="/testbed/calc.py", old_str="* 3", new_str="* 2")


@pytest.fixture
def clone(tmp_path: Path) -> tuple[Path, str]:
    """``(a bare clone, its base commit)``; what mended it came later."""
    folder = tmp_path / "work"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "calc.py").write_text(BUG)
    (folder / "test_calc.py").write_text("from calc import twice\n\n\ndef test_zero():\n    assert twice(0) == 0\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "base")
    base = git(folder, "rev-parse", "HEAD").strip()
    (folder / "calc.py").write_text(f"# {SECRET}\n{FIXED}")
    git(folder, "commit", "-q", "-a", "-m", SECRET)
    git(tmp_path, "clone", "-q", "--bare", "work", "calc.git")
    return tmp_path / "calc.git", base


def row_of(location: Path, base: str) -> dict[str, Any]:
    return {
        "instance_id": "somebody__calc-1",
        "repo": "somebody/calc",
        "base_commit": base,
        "problem_statement": "twice(2) is 6",
        "test_patch": TEST_PATCH,
        "FAIL_TO_PASS": ["test_calc.py::test_two"],
        "PASS_TO_PASS": '["test_calc.py::test_zero"]',
        "source": {"type": "clone", "location": str(location)},
        "requirements": [],
    }


def test_a_local_clone(clone: tuple[Path, str], cache: Path) -> None:
    location, base = clone
    row = row_of(location, base)
    replies = [bash("git log --all --format=%s; python -c 'import calc; print(calc.twice(2))'"), MEND, FINISH]
    with Lab(replies, settings={"swe": {"cache": str(cache)}}, max_context=65_536) as lab:
        result = lab.rollout(row, domain="swe")
    assert (result.status, result.error, result.reward) == ("completed", None, 1.0), result.metrics
    assert "\nbase\n6\n" in result.trajectory.turns[2].text
    assert result.artifacts["files"] == ["calc.py"]


def test_only_what_the_owner_allows_is_opened_for_a_row(clone: tuple[Path, str], cache: Path) -> None:
    location, base = clone
    owners = {"cache": str(cache), "sources": [str(location)]}
    with Lab([MEND, FINISH], settings={"swe": owners}, max_context=65_536) as lab:
        allowed = lab.rollout(row_of(location, base), domain="swe")
        refused = lab.rollout(row_of(location.parent / "work", base), domain="swe")
        with pytest.raises(ServiceError, match="unknown field 'sources'"):
            lab.rollout(row_of(location, base), domain="swe", settings={"sources": None})
    assert (allowed.error, allowed.reward) == (None, 1.0)
    assert refused.error is not None
    assert (refused.error.kind, refused.error.code, refused.error.stage) == ("task", "source_refused", "init")
    assert refused.mask_sample


def copy_program(root: Path, name: str) -> None:
    spec = importlib.util.spec_from_file_location("of_the_core", OF_THE_CORE)
    assert spec is not None
    assert spec.loader is not None
    of_the_core = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(of_the_core)
    of_the_core.copy_program(Path(str(shutil.which(name))).resolve(), root / "usr/bin" / name, root)


def test_tests_that_lie_in_an_image_are_not_the_agents_to_see(rootfs, cache: Path) -> None:  # noqa: F811
    """A row of R2E-Gym, whose images have their tests in three places. There is no pytest in this one, so it is the
    grader that fails, and says so."""
    root, base = rootfs
    for path in ("r2e_tests/test_1.py", "testbed/r2e_tests/test_1.py", "testbed/run_tests.sh", "root/run_tests.sh"):
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text(f"# {SECRET}\n")
    executed = {"test_file_names": ["test_1.py"], "test_file_codes": ["def test_it():\n    assert False\n"]}
    row = {
        "repo_name": "somewhere",
        "docker_image": f"somebody/somewhere:{base}",
        "commit_hash": base,
        "problem_statement": "[ISSUE]\nvalue should be 2\n[/ISSUE]",
        "expected_output_json": json.dumps({"test_it": "PASSED"}),
        "execution_result_content": json.dumps({**executed, "old_commit_res_stdout": "FAILED test_it\n"}),
    }
    look = f"grep -rl {SECRET} /r2e_tests /testbed /root 2>/dev/null; git log -p --all | grep -c {SECRET}"
    replies = [bash(f"{look}; pwd"), bash("echo 'value = 2' > code.py"), FINISH]
    handlers = {"swe": {"images": {"r2e-gym": str(root)}, "format": "r2e-gym"}}
    with Lab(replies, settings={"handlers": handlers, "swe": {"cache": str(cache)}}, max_context=65_536) as lab:
        poor = lab.rollout(row, domain="swe")
        for name in ("awk", "find", "stat", "xargs"):
            copy_program(root, name)
        result = lab.rollout(row, domain="swe")
    assert poor.error is not None
    assert (poor.error.stage, poor.error.code, poor.mask_sample) == ("init", "programs", True)
    assert "there is no awk, find, stat, xargs in the sandbox" in poor.error.message
    assert result.error is not None
    assert (result.error.kind, result.error.stage, result.mask_sample) == ("grader", "eval", True), result.error
    assert "cannot be run even without" in result.error.message
    assert "\n0\n/testbed\n" in result.trajectory.turns[2].text
    assert result.artifacts["files"] == ["code.py"]
