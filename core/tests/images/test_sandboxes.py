"""Bubblewrap runs rootfs folders and SIF files: what a sandbox in one sees, may do, and leaves when it ends."""

# ruff: noqa: ASYNC110, ASYNC240 - /proc and small files do not block, and the kernel tells nobody

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import signal
import sys
from pathlib import Path

import msgspec
import pytest

from prorl.api import Limits, SandboxSpec
from prorl.sandbox.bubblewrap import Bubblewrap
from prorl.sandbox.inside import tree

AS_ROOT = os.geteuid() == 0


def readable_only(runtime: Bubblewrap) -> bool:
    """What FUSE has mounted for a server that is root cannot be made the agent's."""
    return AS_ROOT and (runtime._settings.images.roots == "fuse" or runtime._layers.no_shift is not None)


async def test_the_images_files_and_its_own_python(where, say, left) -> None:
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


async def test_what_is_written_is_gone_afterwards(where, rootfs, say) -> None:
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


async def test_what_is_written_to_the_image_is_capped(where, say) -> None:
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


async def test_nobody_gets_out_of_an_image(where, say) -> None:
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


async def test_thirty_starts_and_stops_leave_nothing(where, left, command_lines) -> None:
    runtime, image = where
    await (await runtime.start(SandboxSpec(image=image))).stop()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(6):
        sandboxes = await asyncio.gather(*(runtime.start(SandboxSpec(image=image)) for _ in range(5)))
        if runtime._roots.why_no_fuse is None and image.endswith(".sif"):
            programs = [line.split(b"\0") for line in command_lines() if image.encode() in line]
            assert len([each for each in programs if Path(os.fsdecode(each[0])).name.startswith("squashfuse")]) == 1
        await asyncio.gather(*(sandbox.stop(grace=0) for sandbox in sandboxes))
        assert left() == []
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("delay", [0, 0.005, 0.02, 0.05, 0.1])
async def test_a_start_that_is_cancelled_leaves_nothing(where, left, delay: float) -> None:
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


async def test_a_server_killed_with_sigkill_takes_the_mount_along(where, left, command_lines) -> None:
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


async def test_a_mount_whose_daemon_died_is_made_anew(make_bubblewrap, sif, say, left) -> None:
    runtime = make_bubblewrap("fuse")
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
