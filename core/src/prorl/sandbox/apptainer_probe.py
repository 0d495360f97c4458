"""What Apptainer can do on this machine, found by really starting containers; each lack with its reason and mend."""

from __future__ import annotations

import asyncio
import getpass
import os
import shutil
import time
from pathlib import Path
from typing import Protocol

from prorl.api.errors import SandboxFault
from prorl.api.sandbox import ActionResult, Probe, Sandbox, SandboxSpec
from prorl.sandbox import host, limits, seccomp
from prorl.sandbox.apptainer_command import SYSTEM_PATH
from prorl.sandbox.images.program import require_apptainer
from prorl.sandbox.mends import explain
from prorl.sandbox.settings import SandboxSettings

NAME = "apptainer"
LOOK = "cat /proc/net/dev | tail -n +3 | cut -d: -f1 | tr -d ' '"
OWN_IDS = "cat /proc/self/uid_map; touch /tmp/own && chown 1:1 /tmp/own"
NO_QUOTA = "an ordinary user's files go to a folder on the disk, without a quota: only file_mb bounds each of them"
FUSE = Path("/dev/fuse")


class Starter(Protocol):
    async def start(self, spec: SandboxSpec) -> Sandbox: ...


async def probe(runtime: Starter, settings: SandboxSettings) -> Probe:
    """Starts a container, and as an ordinary user a second one with fakeroot."""
    root = os.geteuid() == 0
    began = time.monotonic()
    try:
        program = require_apptainer(settings.apptainer)
        sandbox = await runtime.start(SandboxSpec())
    except SandboxFault as fault:
        return Probe(runtime=NAME, works=False, isolation="full", reason=explain(str(fault)))
    started = time.monotonic()
    try:
        bash = await sandbox.act("bash", {"command": LOOK}, timeout=20)
        cell = await sandbox.act("ipython", {"code": "1"}, timeout=60)
    except SandboxFault as fault:
        return Probe(runtime=NAME, works=False, isolation="full", reason=str(fault))
    finally:
        await sandbox.stop(grace=0)
    why_not = {
        "no_network": "" if bash.output == "lo\n" else f"inside there is more than a loopback: {bash.output[:100]}",
        "ipython": "" if cell.outcome == "ok" else cell.error or "the cell did not end",
        "fakeroot": await _fakeroot(runtime),
        "sif": why_no_sif(program),
        "tmp_mb": "" if root else NO_QUOTA,
        "no_user_namespaces": "" if seccomp.supported() else f"no seccomp filter for {os.uname().machine}",
        **dict.fromkeys(("memory_mb", "processes", "cpu_s", "file_mb"), ""),
    }
    lacking, notes = limits.holding(limits.ControlGroups(), own_uid=root)
    why_not |= lacking
    if root:
        notes["tmp_mb"] = "holds for all that is written together, but for /dev/shm"
    ok = bash.outcome == "ok"
    works = {"network", "image"} | {name for name, reason in why_not.items() if not reason}
    return Probe(
        runtime=NAME,
        works=ok,
        isolation="full",
        reason=None if ok else f"bash does not work inside: {bash.error}",
        version=await asyncio.to_thread(host.version, program),
        start_ms=(started - began) * 1000,
        capabilities={name: name in works for name in sorted({"bash", *works, *why_not})} | {"bash": ok},
        why_not={**notes, **{name: reason for name, reason in why_not.items() if reason}},
    )


async def _fakeroot(runtime: Starter) -> str:
    """Why not, or nothing."""
    if os.geteuid() == 0:
        return "the server runs as root, so root inside would be root outside too: run it as an ordinary user"
    try:
        sandbox = await runtime.start(SandboxSpec(fakeroot=True))
    except SandboxFault as fault:
        return f"{explain(str(fault))}; {_subids()}"
    try:
        ids: ActionResult = await sandbox.act("bash", {"command": OWN_IDS}, timeout=20)
    except SandboxFault as fault:
        return str(fault)
    finally:
        await sandbox.stop(grace=0)
    if ids.data.get("exit_code") == 0:
        return ""
    return f"there is no other user than root inside, so chown, apt and su fail: {_subids()}"


def _subids() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.geteuid())
    if not shutil.which("newuidmap", path=SYSTEM_PATH):
        return "newuidmap is missing: as root, install uidmap (Debian) or shadow-utils (Fedora, RHEL)"
    return (
        f"{user} needs subordinate ids in /etc/subuid and /etc/subgid: "
        f"as root, usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}"
    )


def why_no_sif(program: str) -> str:
    """Why an image file cannot be mounted, or nothing. It is unpacked then, once."""
    if os.geteuid() == 0:
        return ""
    unpacked = "images are unpacked instead"
    path = f"{Path(program).absolute().parent}:{SYSTEM_PATH}"
    if not FUSE.exists():
        return f"there is no {FUSE}, {unpacked}: as root, modprobe fuse"
    if not os.access(FUSE, os.R_OK | os.W_OK):
        return f"{FUSE} is closed to ordinary users, {unpacked}: as root, chmod 0666 {FUSE}"
    if not any(shutil.which(name, path=path) for name in ("squashfuse_ll", "squashfuse")):
        return f"squashfuse is missing, {unpacked}: install it"
    return ""
