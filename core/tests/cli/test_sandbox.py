"""``prorl sandbox`` as people run it: what comes out, its exit status, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from prorl.api import RuntimeRecord
from prorl.cli import sandbox
from prorl.plugins import Registry, discover

PRORL = [sys.executable, "-m", "prorl", "sandbox"]
HANGS = """
import asyncio
from prorl.api import SandboxSpec
from prorl.sandbox.local import Local
from prorl.sandbox.settings import SandboxSettings

async def main():
    sandbox = await Local(SandboxSettings(scratch={scratch!r})).start(SandboxSpec())
    await sandbox.act("bash", {{"command": "setsid sleep 1000 & echo $! > pid"}}, timeout=30)
    print(sandbox.workdir, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the command is run. ``scratch`` in it is what sandboxes without isolation leave their files in."""
    (tmp_path / "scratch").mkdir()
    settings = {"runtime": "local", "scratch": str(tmp_path / "scratch"), "state": str(tmp_path / "state")}
    settings["addresses"] = str(tmp_path / "addresses")
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    (tmp_path / "prorl.toml").write_text("\n".join(["[sandbox]", *lines]))
    return tmp_path


def prorl(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    environment = os.environ | {"COLUMNS": "80"}
    return subprocess.run(
        [*PRORL, *arguments], cwd=folder, env=environment, capture_output=True, timeout=100, check=False
    )


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"


def test_one_word_is_a_line_and_the_status_is_the_commands(folder: Path) -> None:
    done = prorl(folder, "run", "--", "echo out; echo err >&2; pwd; exit 3")
    lines = done.stdout.decode().splitlines()
    assert lines[:2] == ["out", "err"]
    assert lines[2].startswith(str(folder / "scratch"))
    assert (done.returncode, done.stderr) == (3, b"")


def test_several_words_are_a_program_and_its_arguments(folder: Path) -> None:
    done = prorl(folder, "run", "printf", "<%s>", "a b", "$HOME", "--help", "'")
    assert done.stdout == b"<a b><$HOME><--help><'>"


def test_it_reads_nothing_and_knows_nothing_of_our_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "hunter2")
    done = prorl(folder, "run", "--", "cat; echo read; env")
    assert done.stdout.startswith(b"read\n")
    assert b"hunter2" not in done.stdout


def test_output_is_whole_and_its_bytes_are_untouched(folder: Path) -> None:
    done = prorl(folder, "run", "--", "head -c 3000000 /dev/zero; printf '\\377\\n'")
    assert done.stdout == bytes(3_000_000) + b"\xff\n"


def test_output_comes_as_it_is_printed(folder: Path) -> None:
    with subprocess.Popen([*PRORL, "run", "--", "echo now; sleep 1000"], cwd=folder, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"now\n"
        running.terminate()
        assert running.wait(60) == 128 + signal.SIGTERM
    assert list((folder / "scratch").iterdir()) == []


def test_nobody_reads_on(folder: Path) -> None:
    line = f"'{sys.executable}' -m prorl sandbox run -- 'yes' | head -c 2"
    done = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, timeout=100, check=False)
    assert (done.stdout, done.stderr) == (b"y\n", b"")
    assert list((folder / "scratch").iterdir()) == []


def test_timeout(folder: Path) -> None:
    done = prorl(folder, "run", "--timeout", "1.5", "--", "echo begun; sleep 1000")
    assert (done.returncode, done.stdout, done.stderr) == (124, b"begun\n", b"ended after 1.5 s\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run",), "Missing argument 'CMD...'"),
        (("run", "--timeout", "0", "true"), "Invalid value for '--timeout'"),
        (("run", "--runtime", "nosuch", "true"), "no sandbox runtime 'nosuch'; known: apptainer, bubblewrap, local"),
        (("run", "--image", "docker://debian:12", "true"), "the local runtime has no images"),
        (("run", "--config", "nosuch.toml", "true"), "nosuch.toml"),
        (("nosuch",), "No such command 'nosuch'"),
    ],
)
def test_what_cannot_work_is_one_line_and_status_2(folder: Path, arguments: tuple[str, ...], words: str) -> None:
    done = prorl(folder, *arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().startswith("Error: ")
    assert words in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


async def test_the_best_runtime_is_isolated(tmp_path: Path) -> None:
    probes = [await record.factory().probe() for record in discover().runtimes.values() if record.preference >= 0]
    if not any(probe.works for probe in probes):
        pytest.skip("; ".join(f"{probe.runtime}: {probe.reason}" for probe in probes))
    done = prorl(
        tmp_path, "run", "--", "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '; ls /proc | grep -c '^[0-9]'"
    )
    interface, processes = done.stdout.split()
    assert interface == b"lo"
    assert int(processes) < 10


def test_sweep_ends_what_a_killed_server_left(folder: Path, until: Callable[[Callable[[], bool]], None]) -> None:
    code = HANGS.format(scratch=str(folder / "scratch"))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        workdir = Path(server.stdout.readline().strip())
        pid = int((workdir / "pid").read_text())
        assert {each["ended"] for each in json.loads(prorl(folder, "sweep", "--json").stdout)} == {0}
        server.kill()
    assert workdir.exists()
    done = prorl(folder, "sweep", "--json")
    swept = {each["runtime"]: each for each in json.loads(done.stdout)}
    assert done.returncode == 0
    assert swept["local"]["ended"] >= 1
    assert not workdir.exists()
    until(lambda: gone(pid))
    again = prorl(folder, "sweep")
    assert [line.split() for line in again.stdout.decode().splitlines()] == [
        ["runtime", "ended", "why", "not"],
        ["apptainer", "0"],
        ["bubblewrap", "0"],
        ["local", "0"],
    ]


class Broken:
    async def sweep(self) -> int:
        raise PermissionError("the journal is somebody else's")


class Three:
    async def sweep(self) -> int:
        return 3


def test_a_runtime_that_cannot_look_does_not_keep_the_others_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"a-broken": Broken, "three": Three}
    records = {name: RuntimeRecord(name=name, factory=made[name], summary="") for name in made}  # type: ignore[arg-type]
    monkeypatch.setattr(sandbox, "load_registry", lambda: Registry(runtimes=records))
    done = CliRunner().invoke(sandbox.command, ["sweep"], standalone_mode=False)
    assert done.return_value == 1
    assert ["three", "3"] in [line.split() for line in done.stdout.splitlines()]
    assert "PermissionError: the journal is somebody else's" in " ".join(done.stdout.split())
