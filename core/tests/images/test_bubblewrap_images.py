"""Bubblewrap runs rootfs folders and SIF files, and nothing of that is left."""

# ruff: noqa: ASYNC110, ASYNC240 - /proc and small files do not block, and the kernel tells nobody

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from prorl.api import ActionResult, Limits, Sandbox, SandboxFault, SandboxSpec
from prorl.sandbox.bubblewrap import Bubblewrap
from prorl.sandbox.images import view
from prorl.sandbox.images.recipe import Recipe
from prorl.sandbox.images.resolve import Images
from prorl.sandbox.inside import tree
from prorl.sandbox.settings import SandboxSettings

QUICKLY = ("--mksquashfs-args", "-comp zstd -Xcompression-level 1")
AS_ROOT = os.geteuid() == 0


@pytest.fixture(scope="session")
def sif(apptainer, rootfs, tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("sif") / "image.sif"
    done = subprocess.run([apptainer, "build", *QUICKLY, made, rootfs], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture
def make(settings) -> Callable[[str], Bubblewrap]:
    def runtime(roots: str = "auto") -> Bubblewrap:
        return Bubblewrap(SandboxSettings(images=msgspec.structs.replace(settings, roots=roots)))

    return runtime


@pytest.fixture(params=["folder", "fuse", "unpack"])
async def where(request, make, rootfs) -> tuple[Bubblewrap, str]:
    """A runtime, and an image for it: a folder, a SIF that is mounted, a SIF that is unpacked."""
    if request.param == "folder":
        return make(), str(rootfs)
    runtime = make(request.param)
    reason = (await runtime.probe()).why_not.get("sif_mount")
    if request.param == "fuse" and reason:
        pytest.skip(reason)
    if request.param == "unpack" and shutil.which("unsquashfs") is None:
        pytest.skip("no unsquashfs")
    return runtime, str(request.getfixturevalue("sif"))


async def say(sandbox: Sandbox, command: str) -> tuple[int, str]:
    result: ActionResult = await sandbox.act("bash", {"command": command}, timeout=60)
    assert result.outcome == "ok", result
    return result.data["exit_code"], result.output


def readable_only(runtime: Bubblewrap) -> bool:
    """What FUSE has mounted for a server that is root cannot be made the agent's."""
    return AS_ROOT and (runtime._settings.images.roots == "fuse" or runtime._layers.no_shift is not None)


def mounts() -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "prorl" in line]


def left() -> list[object]:
    points = list(Path(tempfile.gettempdir()).glob("prorl-root-*"))
    mine = [point for point in points if point.stat().st_uid == os.geteuid()]
    return [*tree.descendants(os.getpid()), *mounts(), *mine]


async def test_the_images_files_and_its_own_python(where) -> None:
    runtime, image = where
    sandbox = await runtime.start(SandboxSpec(image=image))
    try:
        assert await say(sandbox, "cat /opt/from-image; pwd") == (0, "from the image\n/workspace\n")
        assert await say(sandbox, "whoami; echo ok >f && cat f ~/../home/x 2>/dev/null") == (1, "agent\nok\n")
        assert (await say(sandbox, "readlink -f /usr/bin/python3"))[1].startswith("/usr/bin/python3.")
        home = pwd.getpwuid(0).pw_dir  # the host's root has something there
        _, output = await say(sandbox, f"readlink /proc/1/exe; ls -d {home}/* 2>/dev/null | head")
        assert home not in output
        data = await sandbox.act("read", {"path": "/opt/from-image"}, timeout=60)
        assert data.outcome == "ok"
    finally:
        await sandbox.stop()
    assert left() == []


async def test_what_is_written_is_gone_afterwards(where, rootfs) -> None:
    runtime, image = where
    before = sorted(path.name for path in (rootfs / "opt").iterdir())
    one, two = await asyncio.gather(*(runtime.start(SandboxSpec(image=image)) for _ in range(2)))
    try:
        _, output = await say(one, "echo new >/opt/new; rm /opt/from-image; ls /opt")
        if readable_only(runtime):
            assert "Permission denied" in output
        else:
            assert output == "new\n"
        assert await say(one, "echo x >/tmp/f && echo x >/workspace/f") == (0, "")
        assert await say(two, "ls /opt /tmp/f /workspace") == (
            2,
            "ls: cannot access '/tmp/f': No such file or directory\n/opt:\nfrom-image\n\n/workspace:\n",
        )
    finally:
        await asyncio.gather(one.stop(), two.stop())
    assert sorted(path.name for path in (rootfs / "opt").iterdir()) == before
    three = await runtime.start(SandboxSpec(image=image))
    assert await say(three, "cat /opt/from-image") == (0, "from the image\n")
    await three.stop()


async def test_what_is_written_to_the_image_is_capped(where) -> None:
    runtime, image = where
    sandbox = await runtime.start(SandboxSpec(image=image, limits=Limits(tmp_mb=2)))
    try:
        _, output = await say(sandbox, "df -k / | tail -n 1 | sed 's/  */ /g'")
        assert output.split()[1] == "2048", output
        assert await say(
            sandbox, "head -c 5000000 /dev/zero >/tmp/big; head -c 5000000 /dev/zero >/opt/big || echo full"
        ) == (0, "head: error writing 'standard output': No space left on device\n" * 2 + "full\n") or readable_only(
            runtime
        )
    finally:
        await sandbox.stop()


async def test_nobody_gets_out_of_an_image(where) -> None:
    runtime, image = where
    sandbox = await runtime.start(SandboxSpec(image=image))
    try:
        _, status = await say(sandbox, "cat /proc/self/status")
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert int(fields["CapEff"], 16) == int(fields["CapBnd"], 16) == 0
        assert fields["NoNewPrivs"] == "1"
        assert set(fields["Uid"].split()) != {"0"}
        for command in ("mount -t tmpfs x /tmp", "echo x >/proc/sys/kernel/hostname", f"ls /proc/{os.getpid()}"):
            code, _ = await say(sandbox, command)
            assert code != 0, command
        _, output = await say(sandbox, "cat /proc/net/dev | tail -n +3 | grep -c :")
        assert output == "1\n"
        code, _ = await say(sandbox, "python3 -c 'import ctypes as c; exit(c.CDLL(None).unshare(0x10000000) + 1)'")
        assert code == 0
    finally:
        await sandbox.stop()


async def test_thirty_starts_and_stops_leave_nothing(where) -> None:
    runtime, image = where
    await (await runtime.start(SandboxSpec(image=image))).stop()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(6):
        sandboxes = await asyncio.gather(*(runtime.start(SandboxSpec(image=image)) for _ in range(5)))
        if runtime._roots.why_no_fuse is None and image.endswith(".sif"):
            daemons = [line for line in command_lines() if line.startswith(b"squashfuse") or b"/squashfuse" in line]
            assert sum(image.encode() in line for line in daemons) >= 1
            assert len([line for line in daemons if image.encode() in line and b"prorl.sandbox" not in line]) == 1
        await asyncio.gather(*(sandbox.stop(grace=0) for sandbox in sandboxes))
        assert left() == []
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def command_lines() -> list[bytes]:
    lines = []
    for process in tree.processes():
        try:
            lines.append(Path(f"/proc/{process.pid}/cmdline").read_bytes())
        except OSError:
            continue
    return lines


@pytest.mark.parametrize("delay", [0, 0.005, 0.02, 0.05, 0.1])
async def test_a_start_that_is_cancelled_leaves_nothing(where, delay: float) -> None:
    runtime, image = where
    starting = asyncio.create_task(runtime.start(SandboxSpec(image=image)))
    await asyncio.sleep(delay)
    starting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await (await starting).stop()
    assert left() == []
    assert all(not stored.in_use for stored in runtime._images.builder.cache.list())


HOST = """
import asyncio, sys
import msgspec
from prorl.api import SandboxSpec
from prorl.sandbox.bubblewrap import Bubblewrap
from prorl.sandbox.settings import SandboxSettings

async def main():
    runtime = Bubblewrap(msgspec.json.decode(sys.argv[1], type=SandboxSettings))
    sandbox = await runtime.start(SandboxSpec(image=sys.argv[2]))
    print("ready", flush=True)
    await sandbox.act("bash", {"command": "sleep 60"}, timeout=90)

asyncio.run(main())
"""


async def test_a_server_killed_with_sigkill_takes_the_mount_along(where) -> None:
    runtime, image = where
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HOST, msgspec.json.encode(runtime._settings).decode(), image),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGKILL)
    await process.wait()
    async with asyncio.timeout(60):
        while any(image.encode() in line for line in command_lines()) or left():
            await asyncio.sleep(0.02)


async def test_a_mount_whose_daemon_died_is_made_anew(make, sif) -> None:
    runtime = make("fuse")
    if runtime._roots.why_no_fuse:
        pytest.skip(runtime._roots.why_no_fuse)
    one = await runtime.start(SandboxSpec(image=str(sif)))
    for process in tree.descendants(os.getpid()):
        line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        if line.startswith((b"squashfuse", b"/usr/bin/squashfuse")):
            os.kill(process.pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        while any(shared.alive for shared in runtime._roots._shared.values()):
            await asyncio.sleep(0.01)
    two = await runtime.start(SandboxSpec(image=str(sif)))
    assert await say(two, "cat /opt/from-image") == (0, "from the image\n")
    await asyncio.gather(one.stop(), two.stop())
    assert left() == []


async def test_one_in_use_is_not_pruned(make, apptainer, rootfs, tmp_path) -> None:
    template = tmp_path / "x.def.j2"
    template.write_text("Bootstrap: localimage\nFrom: {{ base }}\n%post\n    echo built >/opt/built\n")
    recipe = Recipe(template=str(template), variables={"base": str(rootfs)})
    runtime = make()
    cache = runtime._images.builder.cache
    sandbox = await runtime.start(SandboxSpec(image=recipe.reference))
    assert await say(sandbox, "cat /opt/built") == (0, "built\n")
    in_use = [stored.name for stored in cache.list() if stored.in_use]
    assert in_use
    assert not {stored.name for stored in cache.prune(max_bytes=0)} & set(in_use)
    assert await say(sandbox, "echo /opt/*") == (0, "/opt/built /opt/from-image\n")
    await sandbox.stop()
    assert [stored.in_use for stored in cache.list()] == [False] * len(in_use)
    cache.prune(max_bytes=0)
    assert cache.list() == ()


async def test_where_overlays_are_refused_the_image_is_read_only(make, rootfs, monkeypatch) -> None:
    monkeypatch.setattr(view, "probe_layers", lambda bwrap, is_root: view.Layers(no_overlay="no overlays here"))
    runtime = make()
    assert (await runtime.probe()).why_not["image_writes"].endswith("no overlays here")
    sandbox = await runtime.start(SandboxSpec(image=str(rootfs)))
    assert await say(sandbox, "cat /opt/from-image; touch /workspace/x /tmp/x && whoami") == (
        0,
        "from the image\nagent\n",
    )
    code, output = await say(sandbox, "touch /opt/x /x")
    assert code != 0
    assert output.count("Read-only") + output.count("denied") == 2
    await sandbox.stop()


@pytest.mark.skipif(not AS_ROOT, reason="needs root to make a folder of somebody else's")
async def test_root_owns_nothing_of_the_agents_and_devices_are_dead(make, tmp_path, rootfs) -> None:
    """A device node of an image must not be the host's device, and the host's file must stay root's."""
    root = tmp_path / "root"
    shutil.copytree(rootfs, root, symlinks=True)
    os.mknod(root / "opt/null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    (root / "opt/private").write_text("root's")
    (root / "opt/private").chmod(0o600)
    runtime = make()
    why = (await runtime.probe()).why_not.get("image_writes")
    if why:
        pytest.skip(why)
    sandbox = await runtime.start(SandboxSpec(image=str(root)))
    try:
        _, output = await say(sandbox, "echo x >/opt/null; ls -l /opt/null | head -c 1")
        assert output.endswith("Permission denied\nc")
        assert await say(sandbox, "echo agent >/opt/private && cat /opt/private && chmod 777 /opt/private") == (
            0,
            "agent\n",
        )
    finally:
        await sandbox.stop()
    status = (root / "opt/private").stat()
    assert (status.st_uid, status.st_mode & 0o777) == (0, 0o600)
    assert (root / "opt/private").read_text() == "root's"


@pytest.mark.skipif(AS_ROOT, reason="root may write to anybody's files")
async def test_a_folder_of_somebody_else_is_read_only(make, rootfs, monkeypatch) -> None:
    monkeypatch.setattr(view, "is_ours", lambda folder: False)
    sandbox = await make().start(SandboxSpec(image=str(rootfs)))
    assert await say(sandbox, "touch /workspace/x && cat /opt/from-image") == (0, "from the image\n")
    assert (await say(sandbox, "touch /opt/x"))[0] != 0
    await sandbox.stop()


async def test_neither_fuse_nor_unsquashfs(make, sif, monkeypatch) -> None:
    real = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if "squash" in name else real(name))
    runtime = make()
    probe = await runtime.probe()
    assert probe.works
    assert probe.capabilities["image"]
    assert not probe.capabilities["sif"]
    assert "unsquashfs" in probe.why_not["sif"]
    with pytest.raises(SandboxFault, match="install squashfs-tools") as caught:
        await runtime.start(SandboxSpec(image=str(sif)))
    assert caught.value.code == "no_fuse"
    assert left() == []


@pytest.mark.skipif(os.geteuid() == 0, reason="only an ordinary user's sandbox can do without the image's python3")
async def test_an_image_without_python_has_bash(make, small_rootfs) -> None:
    sandbox = await make().start(SandboxSpec(image=str(small_rootfs)))
    try:
        assert (await sandbox.act("bash", {"command": "x=1; cd /tmp"}, timeout=60)).data["exit_code"] == 0
        assert (await sandbox.act("bash", {"command": "echo $x $PWD"}, timeout=60)).output == "1 /tmp\n"
        refused = await sandbox.act("ipython", {"code": "1"}, timeout=60)
        assert refused.outcome == "error"
        assert "no python3" in refused.error
    finally:
        await sandbox.stop()
    assert left() == []
    (small_rootfs / "usr/bin/dd").rename(small_rootfs / "usr/bin/not-dd")
    try:
        with pytest.raises(SandboxFault, match="nor dd, which bash alone needs"):
            await make().start(SandboxSpec(image=str(small_rootfs)))
    finally:
        (small_rootfs / "usr/bin/not-dd").rename(small_rootfs / "usr/bin/dd")


@pytest.mark.skipif(os.geteuid() != 0, reason="only a server that is root needs the image's python3")
async def test_an_image_without_python_under_root(make, small_rootfs) -> None:
    runtime = make()
    with pytest.raises(SandboxFault, match="no python3") as caught:
        await runtime.start(SandboxSpec(image=str(small_rootfs)))
    assert caught.value.code == "no_python"


@pytest.mark.parametrize(
    ("reference", "message", "code"),
    [
        ("relative/path", "is no image: write an absolute path", "image_reference"),
        ("library://x", "is no image", "image_reference"),
        ("/no/such.sif", "is not there", "image_missing"),
        ("/", "host's own root is not an image", "image_reference"),
        ("/etc", "neither usr nor bin", "image_reference"),
        ("/etc/passwd", "no SIF|too short", "bad_image"),
        ("def:nonesuch", "no definition template", "image_reference"),
        ("/a\0b", "is no image", "image_reference"),
    ],
)
async def test_a_reference_that_cannot_work_is_that_jobs_fault(
    settings, reference: str, message: str, code: str
) -> None:
    with pytest.raises(SandboxFault, match=message) as caught:
        await Images(settings).resolve(reference)
    assert caught.value.code == code


async def test_the_same_answer_in_one_place(settings, sif, rootfs) -> None:
    images = Images(settings)
    assert (await images.resolve(None)).kind == "host"
    assert (await images.resolve(str(rootfs))).kind == "folder"
    one = await images.resolve(str(sif))
    assert (one.kind, one.path) == ("sif", str(sif))
    copy = sif.with_name("copy.sif")
    shutil.copy(sif, copy)
    assert (await images.resolve(str(copy))).digest == one.digest


async def test_prepare_builds_so_that_start_need_not(make, apptainer, rootfs, tmp_path) -> None:
    template = tmp_path / "x.def.j2"
    template.write_text("Bootstrap: localimage\nFrom: {{ base }}\n")
    reference = Recipe(template=str(template), variables={"base": str(rootfs)}).reference
    runtime = make()
    await runtime.prepare(reference)
    built = runtime._images.builder.cache.list()
    assert len(built) == 1
    sandbox = await runtime.start(SandboxSpec(image=reference))
    await sandbox.stop()
    assert [stored.built for stored in runtime._images.builder.cache.list() if stored.built] == [built[0].built]
