"""The action server's own parts, and that it keeps to what any image has: Python 3.8 and its standard library."""

from __future__ import annotations

import ast
import asyncio
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prorl.api import Sandbox, SandboxSpec
from prorl.sandbox import inside
from prorl.sandbox.inside import tree
from prorl.sandbox.inside.capture import Capture
from prorl.sandbox.local import PACKAGES, Local
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


MINORS = range(8, 15)


def find_python(minor: int) -> str | None:
    """One on PATH, or a version manager's own (its shims may be there without the version behind them)."""
    candidates = [shutil.which(f"python3.{minor}")]
    candidates += map(str, sorted(Path("~/.pyenv/versions").expanduser().glob(f"3.{minor}.*/bin/python3.{minor}")))
    for path in candidates:
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    return None


@pytest.fixture(params=MINORS, ids=lambda minor: f"3.{minor}")
async def any_python(request, tmp_path) -> AsyncIterator[Sandbox]:
    python = find_python(request.param)
    if python is None:
        pytest.skip(f"no Python 3.{request.param} on this machine")
    sandbox = await Local(SandboxSettings(python=python, scratch=str(tmp_path))).start(SandboxSpec())
    yield sandbox
    await sandbox.stop(grace=0)


async def test_bash_on_every_python(any_python) -> None:
    act = any_python.act
    assert (await act("bash", {"command": "x=42; echo $x"}, timeout=60)).output == "42\n"
    waits = {"command": "read y; echo $x$y", "soft_timeout": 0.2, "stdin": "terminal"}
    assert (await act("bash", waits, timeout=60)).data["running"]
    assert (await act("bash", {"command": "!\n", "is_input": True}, timeout=60)).output == "42!\n"
    assert (await act("bash", {"command": "sleep 60"}, timeout=0.1)).outcome == "timeout"
    assert (await act("bash", {"command": "seq 1000", "output_chars": 50}, timeout=60)).output_file


async def test_files_on_every_python(any_python) -> None:
    act = any_python.act
    assert (await act("write", {"path": "f", "data": "aGk="}, timeout=60)).data["size"] == 2
    assert (await act("read", {"path": "f"}, timeout=60)).data["data"] == "aGk="
    assert (await act("write", {"path": "f", "data": "a!"}, timeout=60)).outcome == "error"


async def test_ipython_on_every_python(any_python) -> None:
    result = await any_python.act("ipython", {"code": "6 * 7"}, timeout=60)
    assert (result.outcome, result.output) == ("ok", "42\n") or "No module named" in (result.error or "")


def test_the_server_imports_little() -> None:
    """Its start is its imports: 35 ms on an idle core. These would double it, and are only for the worker."""
    code = f"import sys; sys.path.insert(0, {str(PACKAGES)!r}); import inside.server; print(*sys.modules)"
    listed = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    heavy = {"asyncio", "subprocess", "logging", "tempfile", "pathlib", "random", "hashlib", "secrets", "tarfile"}
    assert not heavy & set(listed.stdout.split())


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=400), st.integers(0, 60), st.lists(st.integers(0, 400), max_size=6))
def test_capture_keeps_head_and_tail(data: bytes, limit: int, cuts: list[int]) -> None:
    capture = Capture(limit)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        capture.add(data[start:end])
    text, left_out, _, _ = capture.finish()
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
    text, left_out, _, _ = capture.finish()
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
