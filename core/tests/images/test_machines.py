"""Machines and images that lack something: what works all the same, and what is said of the rest."""

from __future__ import annotations

import os
import shutil
import stat

import pytest

from prorl.api import SandboxFault, SandboxSpec
from prorl.sandbox.images import view

AS_ROOT = os.geteuid() == 0


async def test_where_overlays_are_refused_the_image_is_read_only(make_bubblewrap, rootfs, monkeypatch, say) -> None:
    monkeypatch.setattr(view, "probe_layers", lambda bwrap, is_root: view.Layers(no_overlay="no overlays here"))
    runtime = make_bubblewrap()
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
async def test_root_owns_nothing_of_the_agents_and_devices_are_dead(make_bubblewrap, tmp_path, rootfs, say) -> None:
    """A device node of an image must not be the host's device, and the host's file must stay root's."""
    root = tmp_path / "root"
    shutil.copytree(rootfs, root, symlinks=True)
    os.mknod(root / "opt/null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    (root / "opt/private").write_text("root's")
    (root / "opt/private").chmod(0o600)
    runtime = make_bubblewrap()
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
async def test_a_folder_of_somebody_else_is_read_only(make_bubblewrap, rootfs, monkeypatch, say) -> None:
    monkeypatch.setattr(view, "is_ours", lambda folder: False)
    sandbox = await make_bubblewrap().start(SandboxSpec(image=str(rootfs)))
    assert await say(sandbox, "touch /workspace/x && cat /opt/from-image") == (0, "from the image\n")
    assert (await say(sandbox, "touch /opt/x"))[0] != 0
    await sandbox.stop()


async def test_neither_fuse_nor_unsquashfs(make_bubblewrap, sif, monkeypatch, left) -> None:
    real = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if "squash" in name else real(name))
    runtime = make_bubblewrap()
    probe = await runtime.probe()
    assert probe.works
    assert probe.capabilities["image"]
    assert not probe.capabilities["sif"]
    assert "unsquashfs" in probe.why_not["sif"]
    with pytest.raises(SandboxFault, match="install squashfs-tools") as caught:
        await runtime.start(SandboxSpec(image=str(sif)))
    assert caught.value.code == "no_fuse"
    assert left() == []


@pytest.mark.skipif(AS_ROOT, reason="only an ordinary user's sandbox can do without the image's python3")
async def test_an_image_without_python_has_bash(make_bubblewrap, small_rootfs, left) -> None:
    sandbox = await make_bubblewrap().start(SandboxSpec(image=str(small_rootfs)))
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
            await make_bubblewrap().start(SandboxSpec(image=str(small_rootfs)))
    finally:
        (small_rootfs / "usr/bin/not-dd").rename(small_rootfs / "usr/bin/dd")


@pytest.mark.skipif(not AS_ROOT, reason="only a server that is root needs the image's python3")
async def test_an_image_without_python_under_root(make_bubblewrap, small_rootfs) -> None:
    runtime = make_bubblewrap()
    with pytest.raises(SandboxFault, match="no python3") as caught:
        await runtime.start(SandboxSpec(image=str(small_rootfs)))
    assert caught.value.code == "no_python"
