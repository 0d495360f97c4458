"""A real Apptainer (``$PRORL_APPTAINER`` or on PATH), and a small image made of this machine's own bash and Python."""

from __future__ import annotations

import compileall
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from prorl.api import Sandbox, SandboxSpec
from prorl.sandbox.apptainer import Apptainer
from prorl.sandbox.images.program import find_apptainer
from prorl.sandbox.settings import SandboxSettings

PROGRAMS = (
    *("bash", "sh", "cat", "ls", "id", "touch", "sleep", "env", "head", "mkdir", "chmod", "chown", "grep", "setsid"),
    *("ps", "rm", "wc", "tr", "seq", "unshare", "nohup", "df", "timeout", "true", "cut", "mount"),
)
NOT_COPIED = ("test", "idlelib", "lib2to3", "ensurepip", "tkinter", "turtledemo", "site-packages", "__pycache__")
PATIENCE = 60.0
_reason: list[str | None] = []


@pytest.fixture(scope="session")
def program() -> str:
    found = find_apptainer()
    if found is None or not os.access(found, os.X_OK):
        pytest.skip(
            f"no Apptainer ({found or 'not on PATH, no PRORL_APPTAINER'}): see tests/sandbox/install_apptainer.sh"
        )
    return found


@pytest.fixture
def settings(program, tmp_path) -> SandboxSettings:
    """Everything a runtime writes lies below the test's own folder."""
    folders = {name: tmp_path / name for name in ("scratch", "state", "addresses")}
    folders["scratch"].mkdir()
    return SandboxSettings(apptainer=program, **{name: str(path) for name, path in folders.items()})


@pytest.fixture
async def apptainer(settings) -> Apptainer:
    runtime = Apptainer(settings)
    if not _reason:
        probe = await runtime.probe()
        _reason.append(None if probe.works else probe.reason)
    if _reason[0]:
        pytest.skip(f"apptainer: {_reason[0]}")
    return runtime


@pytest.fixture
def left(settings) -> Callable[[], list[Path]]:
    """Files that runtimes have not removed; the empty folders that hold them don't count."""

    def look() -> list[Path]:
        roots = [Path(root) for root in (settings.scratch, settings.state, settings.addresses) if root]
        return [path for root in roots for path in root.rglob("*") if not path.is_dir() or path.parent == roots[0]]

    return look


@pytest.fixture
async def inside(apptainer) -> AsyncIterator[Callable[..., Awaitable[tuple[int, str]]]]:
    """Run a bash command in a container started with this spec; returns ``(exit code, output)``."""
    started: list[Sandbox] = []

    async def run(command: str, **spec) -> tuple[int, str]:
        if not started:
            started.append(await apptainer.start(SandboxSpec(**spec)))
        result = await started[0].act("bash", {"command": command}, timeout=PATIENCE)
        assert result.outcome == "ok", result
        return result.data["exit_code"], result.output

    yield run
    for sandbox in started:
        await sandbox.stop(grace=0)


@pytest.fixture(scope="session")
def rootfs(tmp_path_factory) -> Path:
    """An image as a folder, of about 30 MB: no package, no network, no root needed to make it."""
    root = tmp_path_factory.mktemp("image") / "rootfs"
    for name in ("usr/bin", "usr/lib", "etc", "tmp", "proc", "dev", "root", "var/tmp", "testbed", ".singularity.d/env"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "usr/lib64").mkdir()
    python = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    programs = [Path(found) for name in PROGRAMS if (found := shutil.which(name, path="/usr/bin:/bin"))]
    stdlib = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix, "base": sys.base_prefix}))
    copied = root / str(stdlib)[1:]
    shutil.copytree(stdlib, copied, ignore=shutil.ignore_patterns(*NOT_COPIED, "config-*", "*.a"))
    for path in (*programs, python, *copied.rglob("*.so")):
        for needed in (path, *_libraries(path)):
            target = (
                root / str(needed)[1:].replace("lib64/", "usr/lib64/", 1).replace("lib/", "usr/lib/", 1)
                if str(needed).startswith(("/lib/", "/lib64/"))
                else root / str(needed)[1:]
            )
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(needed, target)
    if not (root / "usr/bin/python3").exists():
        (root / "usr/bin/python3").symlink_to(python)
    compileall.compile_dir(copied, quiet=2, workers=1)
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/bash\n")
    (root / "etc/group").write_text("root:x:0:\n")
    (root / "testbed/given").write_text("content of the image\n")
    (root / ".singularity.d/env/90-environment.sh").write_text("export FROM_IMAGE=yes\n")
    return root


@pytest.fixture(scope="session")
def sif(program, rootfs) -> Path:
    path = rootfs.parent / "image.sif"
    fast = ("--mksquashfs-args", "-comp zstd -Xcompression-level 1")
    environment = {"PATH": f"{Path(program).parent}:{os.defpath}:/usr/sbin:/sbin", "HOME": str(rootfs.parent)}
    done = subprocess.run(
        [program, "build", *fast, str(path), str(rootfs)], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"apptainer cannot build an image here: {done.stderr[-500:]}")
    return path


def _libraries(path: Path) -> list[Path]:
    listed = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False).stdout
    return [Path(found) for found in re.findall(r"(/\S+) \(0x", listed)]
