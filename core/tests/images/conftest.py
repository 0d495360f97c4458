"""A small root file system made of this machine's own programs, and the real Apptainer where there is one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from prorl.api import ActionResult, Sandbox
from prorl.sandbox.bubblewrap import Bubblewrap
from prorl.sandbox.images.program import find_apptainer
from prorl.sandbox.images.settings import ImageSettings
from prorl.sandbox.inside import tree
from prorl.sandbox.settings import SandboxSettings

PROGRAMS = (
    *(
        "bash",
        "sh",
        "cat",
        "ls",
        "touch",
        "mkdir",
        "rm",
        "id",
        "whoami",
        "sleep",
        "head",
        "tail",
        "env",
        "mount",
        "getopt",
    ),
    *(
        "cut",
        "tr",
        "wc",
        "readlink",
        "dirname",
        "basename",
        "sed",
        "grep",
        "chmod",
        "cp",
        "mv",
        "ln",
        "true",
        "df",
        "dd",
        "base64",
    ),
)
QUICKLY = ("--mksquashfs-args", "-comp zstd -Xcompression-level 1")
NOT_COPIED = ("test", "tests", "site-packages", "dist-packages", "idlelib", "tkinter", "ensurepip", "__pycache__")
DIRECTORIES = ("etc", "proc", "sys", "dev", "tmp", "run", "root", "home", "opt", "var", "usr/bin", "usr/lib")


def libraries(program: Path) -> set[str]:
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    return set(re.findall(r"(/\S+\.so\S*)", done.stdout))


def copy_program(source: Path, target: Path, root: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
    copy_libraries(source, root)


def copy_libraries(source: Path, root: Path) -> None:
    for library in libraries(source):
        at = root / library.lstrip("/")
        if not at.exists():
            at.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, at)


def make_rootfs(root: Path, *, python: bool) -> None:
    for directory in DIRECTORIES:
        (root / directory).mkdir(parents=True, exist_ok=True)
    (root / "bin").symlink_to("usr/bin")
    for name in PROGRAMS:
        found = shutil.which(name)
        assert found, name
        copy_program(Path(found), root / "usr/bin" / name, root)
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/bash\n")
    (root / "etc/group").write_text("root:x:0:\n")
    (root / "opt/from-image").write_text("from the image\n")
    if python:
        copy_python(root)


def copy_python(root: Path) -> None:
    """This interpreter and its standard library, at the place where a distribution has them."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    executable = Path(os.path.realpath(sys.executable))
    copy_program(executable, root / "usr/bin" / name, root)
    (root / "usr/bin/python3").symlink_to(name)
    ignore = shutil.ignore_patterns(*NOT_COPIED, "config-*", "turtledemo", "lib2to3", "pydoc_data")
    shutil.copytree(sysconfig.get_path("stdlib"), root / "usr/lib" / name, ignore=ignore, symlinks=False)
    for module in (root / "usr/lib" / name / "lib-dynload").glob("*.so"):
        copy_libraries(module, root)


@pytest.fixture(scope="session")
def rootfs(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("images") / "rootfs"
    make_rootfs(root, python=True)
    for folder in (root, *root.parents):
        if folder.owner() == root.owner() and folder.is_relative_to(tmp_path_factory.getbasetemp()):
            folder.chmod(0o755)
    return root


@pytest.fixture(scope="session")
def small_rootfs(tmp_path_factory) -> Path:
    """No python, and so quick to build from."""
    root = tmp_path_factory.mktemp("images") / "small"
    make_rootfs(root, python=False)
    return root


@pytest.fixture(scope="session")
def apptainer() -> str:
    found = find_apptainer()
    if found is None:
        pytest.skip("no apptainer: set PRORL_APPTAINER or put one on PATH")
    return found


@pytest.fixture
def settings(tmp_path) -> ImageSettings:
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    return ImageSettings(folder=str(tmp_path / "cache"), tmp=str(tmp))


@pytest.fixture(scope="session")
def sif(apptainer, rootfs, tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("sif") / "image.sif"
    done = subprocess.run([apptainer, "build", *QUICKLY, made, rootfs], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture
def points(monkeypatch) -> Iterator[Path]:
    """Where this test's images are mounted, apart from those of anybody else on this machine."""
    with tempfile.TemporaryDirectory(prefix="prorl-points-") as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


@pytest.fixture
def make_bubblewrap(settings, points) -> Callable[..., Bubblewrap]:
    """``make_bubblewrap("fuse")``: a runtime that gets at the files of a SIF in this way."""

    def runtime(roots: str = "auto") -> Bubblewrap:
        return Bubblewrap(SandboxSettings(images=msgspec.structs.replace(settings, roots=roots)))

    return runtime


@pytest.fixture(params=["folder", "fuse", "unpack"])
async def where(request, make_bubblewrap, rootfs) -> tuple[Bubblewrap, str]:
    """A runtime, and an image for it: a folder, a SIF that is mounted, a SIF that is unpacked."""
    if request.param == "folder":
        return make_bubblewrap(), str(rootfs)
    runtime = make_bubblewrap(request.param)
    reason = (await runtime.probe()).why_not.get("sif_mount")
    if request.param == "fuse" and reason:
        pytest.skip(reason)
    if request.param == "unpack" and shutil.which("unsquashfs") is None:
        pytest.skip("no unsquashfs")
    return runtime, str(request.getfixturevalue("sif"))


@pytest.fixture
def say() -> Callable[[Sandbox, str], Awaitable[tuple[int, str]]]:
    """``await say(sandbox, command)``: its exit status and what it printed."""

    async def run(sandbox: Sandbox, command: str) -> tuple[int, str]:
        result: ActionResult = await sandbox.act("bash", {"command": command}, timeout=60)
        assert result.outcome == "ok", result
        return result.data["exit_code"], result.output

    return run


@pytest.fixture
def left(points) -> Callable[[], list[object]]:
    """``left()``: this test's processes, mounts and mount points that are still there."""

    def look() -> list[object]:
        mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(points) in line]
        return [*tree.descendants(os.getpid()), *mounts, *points.glob("prorl-root-*")]

    return look


@pytest.fixture
def command_lines() -> Callable[[], list[bytes]]:
    """Those of all processes of the machine, arguments divided by NULs."""

    def look() -> list[bytes]:
        lines = []
        for process in tree.processes():
            try:
                lines.append(Path(f"/proc/{process.pid}/cmdline").read_bytes())
            except OSError:
                continue
        return lines

    return look
