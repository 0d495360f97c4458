"""``Bind.own``: a folder of the host that a sandbox may write to, what it writes being its alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from prorl.api import Bind, Limits, Sandbox, SandboxFault, SandboxSpec
from prorl.sandbox.apptainer import Apptainer
from prorl.sandbox.bubblewrap import Bubblewrap
from prorl.sandbox.images import layers
from prorl.sandbox.settings import SandboxSettings

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


async def working(runtime):
    probe = await runtime.probe()
    if not probe.works:
        pytest.skip(f"{runtime.name}: {probe.reason}")
    return runtime


async def changes_stay_with_the_sandbox(runtime, folder: Path, at: str, **spec) -> None:
    """Two sandboxes of one folder see it whole, each may do anything to it, and nobody else sees what it did."""
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


async def test_local(local, folder, tmp_path) -> None:
    """No isolation, so nothing at another path; a copy in the working directory is the sandbox's own all the same."""
    await changes_stay_with_the_sandbox(local, folder, "/testbed", workdir="/testbed")
    assert list(tmp_path.glob("prorl-local-*")) == []
    for bind in (
        Bind(source=str(folder), target="/elsewhere", own=True),
        Bind(source=str(folder), target="/testbed/shown"),
    ):
        with pytest.raises(SandboxFault, match="local runtime has neither"):
            await local.start(SandboxSpec(workdir="/testbed", binds=(bind,)))


async def test_apptainer(folder, tmp_path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    settings = SandboxSettings(scratch=str(scratch), state=str(tmp_path / "state"), addresses=str(tmp_path / "leases"))
    runtime = await working(Apptainer(settings))
    await changes_stay_with_the_sandbox(runtime, folder, "/somewhere/else")
    await changes_stay_with_the_sandbox(runtime, folder, "/testbed", workdir="/testbed")
    assert list(scratch.iterdir()) == []


async def test_what_is_written_is_bounded(bubblewrap, folder) -> None:
    bind = Bind(source=str(folder), target="/testbed", own=True)
    sandbox = await bubblewrap.start(SandboxSpec(workdir="/testbed", binds=(bind,), limits=Limits(tmp_mb=2)))
    try:
        code, output = await run(sandbox, "head -c 9000000 /dev/zero >big; wc -c <big")
        assert "No space left" in output
        code, output = await run(sandbox, "rm big; echo fits >a.txt; cat a.txt")
        assert (code, output) == (0, "fits\n")
    finally:
        await sandbox.stop(grace=0)


async def test_without_overlays_it_is_a_copy(folder, monkeypatch) -> None:
    """As on a kernel that has none for ordinary users, or cannot shift ids for a server that is root."""
    runtime = Bubblewrap()
    await working(runtime)
    monkeypatch.setattr(Bubblewrap, "_has_overlays", lambda self: False)
    refuse = (
        "import sys; sys.path.insert(0, sys.argv[1]); import layers\ndef refuse(*_, **__): raise OSError('refused')\n"
    )
    monkeypatch.setattr(layers, "BOOT", f"{refuse}layers.clone = refuse\nlayers.main(sys.argv[2:])")
    await changes_stay_with_the_sandbox(runtime, folder, "/testbed", workdir="/testbed")
    await changes_stay_with_the_sandbox(runtime, folder, "/somewhere/else", limits=Limits(tmp_mb=1))


@pytest.mark.parametrize(
    ("bind", "message"),
    [
        (Bind(source="/no/such/folder", target="/x", own=True), "no /no/such/folder"),
        (Bind(source="/etc/hostname", target="/x", own=True), "is a file"),
        (Bind(source="/usr", target="/x", own=True, writable=True), "either writable or"),
        (Bind(source="/usr", target="x", own=True), "absolute path"),
        (Bind(source="/usr", target="/x/../y", own=True), "absolute path"),
    ],
)
async def test_what_cannot_be_ones_own(runtime, bind: Bind, message: str) -> None:
    with pytest.raises(SandboxFault, match=message):
        await runtime.start(SandboxSpec(binds=(bind,)))
