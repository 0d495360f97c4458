"""``Bind.own``: a folder of the host that a sandbox may write to, what it writes being its alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prorl.api import Bind, Limits, Sandbox, SandboxFault, SandboxSpec

CHANGE = (
    "set -e; cd {at}; grep -q first a.txt; echo second >>a.txt; rm b/gone.txt; mkdir b/new; echo x >b/new/file; "
    "mv b/moved.txt moved.txt; ln -s a.txt link; chmod +x run.sh; cat a.txt; ls -A . b | tr '\\n' ' '"
)


@pytest.fixture
def folder(tmp_path) -> Path:
    """As a repository of the server's own is: its files are nobody else's to write."""
    made = tmp_path / "shared, with a comma"
    (made / "b").mkdir(parents=True)
    (made / "a.txt").write_text("first\n")
    for name in ("gone", "moved"):
        (made / "b" / f"{name}.txt").write_text(f"{name}\n")
    (made / "run.sh").write_text("echo ran\n")
    for path in (made, *made.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return made


def snapshot(folder: Path) -> dict[str, tuple[object, ...]]:
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else None
        found[str(path)] = (status.st_mode, status.st_uid, status.st_gid, status.st_ino, status.st_mtime_ns, content)
    return found


async def run(sandbox: Sandbox, command: str) -> tuple[int, str]:
    result = await sandbox.act("bash", {"command": command}, timeout=60)
    assert result.outcome == "ok", result
    return result.data["exit_code"], result.output


async def changes_stay_with_the_sandbox(runtime, folder: Path, at: str, **spec) -> None:
    """Two sandboxes of one folder see it whole, each may do anything to it, and neither the host nor the other sees it."""
    before = snapshot(folder)
    asked = SandboxSpec(binds=(Bind(source=str(folder), target=at, own=True),), **spec)
    one, two = await runtime.start(asked), await runtime.start(asked)
    try:
        for sandbox in (one, two):
            code, output = await run(sandbox, CHANGE.format(at=sandbox.workdir if at == spec.get("workdir") else at))
            assert (code, output.splitlines()[:2]) == (0, ["first", "second"]), output
            assert "gone.txt" not in output
            assert "moved.txt" in output
    finally:
        await one.stop(grace=0)
        await two.stop(grace=0)
    assert snapshot(folder) == before


async def test_bubblewrap(bubblewrap, folder) -> None:
    await changes_stay_with_the_sandbox(bubblewrap, folder, "/somewhere/else")
    await changes_stay_with_the_sandbox(bubblewrap, folder, "/testbed", workdir="/testbed")
