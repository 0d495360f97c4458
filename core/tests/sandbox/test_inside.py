"""The action server's own parts, and that it keeps to what any image has: Python 3.8 and its standard library."""

from __future__ import annotations

import ast
import asyncio
import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prorl.api import SandboxSpec
from prorl.sandbox import inside
from prorl.sandbox.inside import tree
from prorl.sandbox.inside.capture import Capture
from prorl.sandbox.local import Local
from prorl.sandbox.settings import SandboxSettings

SOURCES = sorted(Path(inside.__file__).parent.glob("*.py"))
WORKER_ONLY = {"IPython", "traitlets"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_python_3_8_and_the_standard_library(path: Path) -> None:
    module = ast.parse(path.read_text(), feature_version=(3, 8))
    for node in ast.walk(module):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        for name in names:
            top = name.split(".")[0]
            assert top in sys.stdlib_module_names or (path.name == "worker.py" and top in WORKER_ONLY), name


def other_pythons() -> list[str]:
    names = [f"python3.{minor}" for minor in range(8, 16)]
    found = []
    for name in names:
        path = shutil.which(name)
        # A version manager's shim may be there without the version behind it.
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            found.append(path)
    return found


async def test_it_runs_on_every_python_here(tmp_path) -> None:
    for python in [*other_pythons(), sys.executable]:
        sandbox = await Local(SandboxSettings(python=python, scratch=str(tmp_path))).start(SandboxSpec())
        result = await sandbox.act("bash", {"command": "echo $((6*7))"}, timeout=60)
        await sandbox.stop()
        assert result.output == "42\n", python


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=400), st.integers(0, 60), st.lists(st.integers(0, 400), max_size=6))
def test_capture_keeps_head_and_tail(data: bytes, limit: int, cuts: list[int]) -> None:
    capture = Capture(limit)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        capture.add(data[start:end])
    text, left_out = capture.finish()
    whole = data.decode("utf-8", "replace")
    if len(whole) <= limit:
        assert (text, left_out) == (whole, 0)
    else:
        head = (limit + 1) // 2
        note = f"\n[... {len(whole) - limit} characters left out ...]\n"
        assert text == whole[:head] + note + whole[len(whole) - (limit - head) :]
        assert left_out > 0


def test_capture_memory_is_bounded() -> None:
    capture = Capture(1000)
    for _ in range(1000):
        capture.add(b"x" * 10_000)
    assert sum(len(part) for part in capture._tail) < 100_000
    text, left_out = capture.finish()
    assert left_out == 10_000_000 - 1000
    assert len(text) < 1100


async def test_moments_tell_older_processes_from_newer_ones() -> None:
    async def sleeper() -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec("sleep", "60")

    older = await sleeper()
    moment = tree.Moment.now()
    newer = await sleeper()
    found = {process.pid for process in tree.descendants(os.getpid(), moment)}
    assert newer.pid in found
    assert older.pid not in found
    assert older.pid in {process.pid for process in tree.descendants(os.getpid())}
    assert newer.pid not in {process.pid for process in tree.descendants(os.getpid(), moment, beside=[newer.pid])}
    for process in (older, newer):
        process.kill()
        await process.wait()


def test_a_process_that_is_not_there() -> None:
    assert tree.read_process(2**22 + 1) is None
