"""Where control groups can be made, what is set in them, and what is told of limits that hold only in part."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from prorl.api import Limits
from prorl.sandbox import limits
from prorl.sandbox.limits import ControlGroups


@pytest.fixture
def v1(tmp_path) -> tuple[Path, Path]:
    for name in ("memory/job/7", "pids"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "cgroup.procs").write_text("")
    membership = tmp_path / "membership"
    membership.write_text("9:name=systemd:/\n8:pids:/of/the/host\n4:cpu,memory:/job/7\n0::/\n")
    return tmp_path, membership


@pytest.fixture
def v2(tmp_path) -> tuple[Path, Path]:
    (tmp_path / "user.slice/mine").mkdir(parents=True)
    (tmp_path / "user.slice/mine/cgroup.subtree_control").write_text("cpu memory pids\n")
    membership = tmp_path / "membership"
    membership.write_text("0::/user.slice/mine\n")
    return tmp_path, membership


def test_version_1_is_found_by_controller(v1) -> None:
    groups = ControlGroups(*v1)
    assert groups.has("memory")
    assert groups.has("pids")
    assert {str(group.relative_to(v1[0])) for group in groups.make("x", Limits())} == {
        "memory/job/7/prorl-x",
        "pids/prorl-x",
    }
    assert {group.name for group in groups.find("x")} == {"prorl-x"}
    assert groups.find("y") == []


def test_version_2_needs_what_is_delegated_to_children(v2) -> None:
    mounted, membership = v2
    assert ControlGroups(mounted, membership).has("memory")
    (mounted / "user.slice/mine/cgroup.subtree_control").write_text("cpu\n")
    assert not ControlGroups(mounted, membership).has("memory")


def test_nothing_is_asked_for_what_is_unbounded(v1) -> None:
    unbounded = Limits(memory_mb=None, processes=None)
    assert ControlGroups(*v1).make("x", unbounded) == []
    assert limits.enter([], ["true"]) == ["true"]


def test_no_control_groups_at_all(tmp_path) -> None:
    groups = ControlGroups(tmp_path, tmp_path / "none")
    assert not groups.has("memory")
    assert groups.make("x", Limits()) == []
    why_not, notes = limits.holding(groups, own_uid=False)
    assert "RLIMIT_AS" in notes["memory_mb"]
    assert ("processes" in why_not) == (limits.kernel() < limits.NPROC_PER_NAMESPACE)


def test_before_linux_5_14_processes_are_not_counted_per_sandbox(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(limits, "kernel", lambda: (5, 10))
    groups = ControlGroups(tmp_path, tmp_path / "none")
    assert "5.14" in limits.holding(groups, own_uid=False)[0]["processes"]
    assert limits.rlimits(Limits(processes=9), [], own_uid=False).processes is None
    assert limits.rlimits(Limits(processes=9), [], own_uid=True).processes == 9


def test_real_groups_hold_what_is_started_in_them() -> None:
    groups = ControlGroups()
    if not groups.has("pids") or not groups.has("memory"):
        pytest.skip("no writable control groups here")
    given = Limits(processes=5, memory_mb=64)
    made = groups.make("test-of-limits", given)
    assert limits.rlimits(given, made, own_uid=False).memory_mb is None
    try:
        script = "for i in 1 2 3 4 5 6 7 8; do sleep 1 & done; wait"
        done = subprocess.run(limits.enter(made, ["sh", "-c", script]), capture_output=True, text=True, check=False)
        assert "fork" in done.stderr.lower()
        hog = [sys.executable, "-c", "x = bytearray(b'1') * (200 << 20)"]
        assert subprocess.run(limits.enter(made, hog), capture_output=True, check=False).returncode == -9
    finally:
        limits.remove(made)
    assert groups.find("test-of-limits") == []
