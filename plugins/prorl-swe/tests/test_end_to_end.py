"""Repositories repaired through the real server, sandboxes, tools and grader; only the policy's words are given."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from repairs import FINISH, FIX, REPAIR, ROWS, bash, by_repository, call

from prorl.testing.lab import Lab
from prorl.testing.scripted import ScriptedReply
from prorl.wire import RolloutResult

NAMES = tuple(ROWS)
# Engines' contexts count bytes here, so a few thousand tokens hold a short talk only.
CONTEXT = 65_536
Said = Callable[[str], list[str]]


@pytest.fixture
def lab(cache: Path) -> Callable[..., Lab]:
    """``lab(policy)``: a server whose repositories are kept for all tests of this run."""

    def make(policy: Any, **settings: Any) -> Lab:
        tables = {"handlers": {"swe": settings}, "swe": {"cache": str(cache)}}
        return Lab(policy, settings=tables, max_context=CONTEXT)

    return make


@pytest.fixture
def rollout(tmp_path: Path) -> Callable[..., dict[str, RolloutResult]]:
    """``prorl rollout`` on the three rows; the results by repository."""

    def run(url: str, *options: str) -> dict[str, RolloutResult]:
        rows, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
        rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS.values()))
        command = [str(Path(sys.executable).parent / "prorl"), "rollout", str(rows), "--domain", "swe"]
        options = ("--server", url, "--out", str(out), *options)
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        assert len(lines) == len(ROWS)
        by_line = {line.pop("row")["line"]: line for line in lines}
        names = dict(enumerate(ROWS, start=1))
        return {names[number]: msgspec.convert(line, RolloutResult, strict=False) for number, line in by_line.items()}

    return run


def test_three_repositories_repaired(lab, rollout) -> None:
    with lab(by_repository(REPAIR.__getitem__)) as running:
        results = rollout(running.url)
    for name, result in results.items():
        assert (result.status, result.error, result.reward, result.resolved) == ("completed", None, 1.0, True), name
        assert not result.mask_sample
        assert result.metrics["ended"] == "finish"
        assert result.metrics["tool_errors"] == 0, [turn.text for turn in result.trajectory.turns]
        assert (result.metrics["f2p"], result.metrics["f2p_passed"]) == (1, 1)
        assert result.metrics["p2p_kept"] == result.metrics["p2p"] > 100
        assert set(result.metrics["seconds"]) >= {"repository", "sandbox", "patch"}
        assert result.metrics["patch_bytes"] == len(result.artifacts["patch"])
        assert result.artifacts["patch"].startswith(f"diff --git a/{result.artifacts['files'][0]} ")
        assert any(" passed" in turn.text for turn in result.trajectory.turns if turn.role == "tool")
        assert result.instance_id == ROWS[name]["instance_id"]


def test_nothing_done_is_zero(lab, rollout) -> None:
    with lab(by_repository(lambda _: [bash("ls"), FINISH])) as running:
        results = rollout(running.url)
    for result in results.values():
        assert (result.status, result.error, result.reward, result.resolved) == ("completed", None, 0.0, False)
        assert not result.mask_sample
        assert result.metrics["reason"] == "nothing was changed"


TAMPER = (
    # A hook that reports whatever happened as passed, for all tests, and the known tests without what they ask.
    "import pytest\n\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n"
    "    outcome = yield\n    report = outcome.get_result()\n"
    "    report.outcome = 'passed'\n    report.longrepr = None\n"
)


def tampering(name: str) -> list[str]:
    folder = "pyflakes/test" if name == "pyflakes" else "tests"
    [f2p] = json.loads(ROWS[name]["FAIL_TO_PASS"])
    test_file = f2p.partition("::")[0]
    return [
        call("str_replace_editor", command="create", path="/testbed/conftest.py", file_text=TAMPER),
        call("str_replace_editor", command="create", path=f"/testbed/{folder}/conftest.py", file_text=TAMPER),
        bash(f"sed -i 's/assert/#assert/' {test_file}; printf '[pytest]\\naddopts = --co\\n' > pytest.ini"),
        FINISH,
    ]


def test_tests_edited_instead_of_the_code_is_zero(lab, rollout) -> None:
    with lab(by_repository(tampering), test_timeout_s=10) as running:
        results = rollout(running.url)
    for name, result in results.items():
        assert (result.status, result.error, result.reward, result.resolved) == ("completed", None, 0.0, False), name
        assert "conftest.py" in result.metrics["dropped"], name


def test_a_fix_is_graded_when_time_ends_while_a_command_runs(lab) -> None:
    with lab([FIX["PyJWT"], bash("sleep 600")]) as running:
        result = running.rollout(ROWS["PyJWT"], domain="swe", budgets={"run_s": 8})
    assert (result.status, result.reward, result.resolved, result.mask_sample) == ("timed_out", 1.0, True, False)
    assert result.error is not None
    assert result.error.code == "run_budget"
    assert result.metrics["ended"] == "timeout"
    assert result.artifacts["files"] == ["jwt/api_jwt.py"]


def test_a_fix_is_graded_when_turns_end(lab) -> None:
    with lab([FIX["PyJWT"], *[bash("true")] * 5]) as running:
        result = running.rollout(ROWS["PyJWT"], domain="swe", settings={"max_turns": 2})
    assert (result.status, result.reward, result.metrics["ended"]) == ("completed", 1.0, "max_turns")


def test_a_fault_shows_the_work_but_is_no_sample(lab) -> None:
    """What the engine says after the fix has no logprobs."""

    def policy(request: Any) -> ScriptedReply:
        if request.call == 0:
            return ScriptedReply(text=FIX["PyJWT"])
        return ScriptedReply(text="x", logprobs=[-9999.0, -9999.0])

    with lab(policy) as running:
        result = running.rollout(ROWS["PyJWT"], domain="swe")
    assert (result.status, result.mask_sample) == ("failed", True)
    assert result.error is not None
    assert result.error.kind == "model"
    assert result.artifacts["files"] == ["jwt/api_jwt.py"]


def test_eight_samples_of_one_row_at_once_leave_nothing(lab, tmp_path, monkeypatch, cache) -> None:
    """One preparation, eight repairs; after that no process, no mount, no file."""
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    before = mounts()
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(ROWS["PyJWT"]) + "\n")
    with lab(by_repository(REPAIR.__getitem__)) as running:
        command = [str(Path(sys.executable).parent / "prorl"), "rollout", str(rows), "--domain", "swe", "-n", "8"]
        options = ["--server", running.url, "--out", str(tmp_path / "out.jsonl")]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(result["status"], result["reward"]) for result in results] == [("completed", 1.0)] * 8
    children = psutil.Process().children(recursive=True)
    assert [child for child in children if child.status() != psutil.STATUS_ZOMBIE] == []
    assert mounts() == before
    assert list(scratch.iterdir()) == []
    assert list(cache.rglob("*.part")) == []


def mounts() -> set[str]:
    """Where something is mounted, without what others on this machine do meanwhile."""
    points = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    return {point for point in points if "prorl" in point}


HIDDEN = (
    "name=test_rasise_exception_on_partial_issue; name=${name}r_match; "
    "grep -rl $name /testbed /opt/prorl-swe /workspace /tmp 2>/dev/null; env | grep $name; "
    "git log --all --oneline | wc -l; git reflog | wc -l; git stash list; git fsck --lost-found 2>&1 | wc -l; "
    "git cat-file --batch-check --batch-all-objects | cut -d' ' -f1 | git cat-file --batch | grep -a -c $name"
)


def test_nothing_hidden_reaches_the_prompt_or_the_sandbox(lab) -> None:
    row = {**ROWS["PyJWT"], "hints_text": "compare-with-equality-instead"}
    with lab([bash(HIDDEN), FINISH]) as running:
        result = running.rollout(row, domain="swe")
        prompt = running.engine.requests[0].prompt
    assert "is merely a substring of it" in prompt
    for hidden in (
        "compare-with-equality",
        "rasise_exception",
        "urn:expected",
        "test_api_jwt",
        'payload["iss"] not in',
    ):
        assert hidden not in prompt
    assert "<tool_response>\n1\n0\n0\n0\n[" in result.trajectory.turns[2].text


def test_the_fraction(lab) -> None:
    with lab([bash("echo 'raise ImportError' > jwt/jwks_client.py"), FINISH]) as running:
        broken = running.rollout(ROWS["PyJWT"], domain="swe", settings={"reward": "fraction"})
    with lab(REPAIR["PyJWT"]) as running:
        right = running.rollout(ROWS["PyJWT"], domain="swe", settings={"reward": "fraction"})
    assert (broken.reward, broken.resolved, right.reward, right.resolved) == (0.0, False, 1.0, True)


def test_a_patch_that_is_too_large_is_none(lab) -> None:
    with lab([FIX["PyJWT"], bash("head -c 3000000 /dev/urandom > data.bin"), FINISH]) as running:
        result = running.rollout(ROWS["PyJWT"], domain="swe")
    assert (result.status, result.reward, result.mask_sample) == ("completed", 0.0, False)
    assert "more than 2097152 bytes" in result.metrics["reason"]


def test_bad_rows_and_settings_are_masked_before_a_token_is_sampled(lab) -> None:
    bad = {name: value for name, value in ROWS["PyJWT"].items() if name != "problem_statement"}
    other_hash = {**ROWS["PyJWT"], "sdist_sha256": "0" * 64}
    with lab([FINISH]) as running:
        results = [
            running.rollout(bad, domain="swe"),
            running.rollout(other_hash, domain="swe"),
            running.rollout(ROWS["PyJWT"], domain="swe", settings={"tools": ["finish"]}),
        ]
        asked = len(running.engine.requests)
    for result, text in zip(results, ("problem_statement", "SHA-256", "works in a sandbox"), strict=True):
        assert (result.status, result.mask_sample) == ("failed", True)
        assert result.error is not None
        assert result.error.stage == "init"
        assert text in result.error.message
    assert asked == 0


def test_a_test_patch_that_does_not_apply_masks(lab) -> None:
    row = {**ROWS["PyJWT"], "test_patch": ROWS["PyJWT"]["test_patch"].replace("assert exc", "assert ex")}
    with lab([FIX["PyJWT"], FINISH]) as running:
        result = running.rollout(row, domain="swe")
    assert (result.status, result.mask_sample) == ("failed", True)
    assert result.error is not None
    assert (result.error.kind, result.error.stage) in {("task", "eval"), ("grader", "eval")}


def test_other_tools_and_words_are_settings(lab) -> None:
    settings = {
        "tools": ["execute_ipython_cell", "think", "finish"],
        "system_prompt": "You are brief.",
        "instructions": "Work in {repository}!",
    }
    replies = [call("execute_ipython_cell", code="import jwt, os; (jwt.__version__, os.getcwd())"), FINISH]
    with lab(replies) as running:
        result = running.rollout(ROWS["PyJWT"], domain="swe", settings=settings)
    prompt = result.trajectory.turns[0].text
    assert "You are brief." in prompt
    assert "Work in /testbed!" in prompt
    assert "execute_bash" not in prompt
    assert "('2.10.0', '/testbed')" in result.trajectory.turns[2].text
