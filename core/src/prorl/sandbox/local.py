"""No sandbox at all: the action server as an ordinary process in a private folder. For a laptop and trusted models.

What isolation would have cleaned up is done by hand: the action server is a subreaper and kills what is below it when
its connection ends; what escaped even that is found by session id or by a mark in its environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import socket
import tempfile
import time
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from prorl.api.errors import SandboxFault
from prorl.api.sandbox import Bind, Probe, SandboxSpec
from prorl.host.run import to_its_end
from prorl.sandbox import host
from prorl.sandbox.binds import check_binds, copy_folder
from prorl.sandbox.channel import Token
from prorl.sandbox.inside import frames, tree
from prorl.sandbox.process import Child, Spawner
from prorl.sandbox.served import ServedSandbox, connect, start_or_undo
from prorl.sandbox.settings import SandboxSettings

PACKAGES = Path(frames.__file__).parent.parent
IMPORT = f"import sys; sys.path.insert(0, {str(PACKAGES)!r}); from inside.server import main"
BOOT = f"{IMPORT}; main(*map(int, sys.argv[1:]))"
PREFIX = "prorl-local-"
OWNER = "owner.json"
MARK = "PRORL_SANDBOX"
NO_ISOLATION = "this runtime isolates nothing"


class Owner(msgspec.Struct, frozen=True):
    """Whose folder it is: a pid alone could have been given to another process since."""

    pid: int
    started: int


class Local:
    """Implements :class:`prorl.api.SandboxRuntime` with ``isolation="none"``. Never chosen unless asked for by name."""

    name = "local"

    def __init__(self, settings: SandboxSettings | None = None) -> None:
        self._settings = settings or SandboxSettings()
        self._spawner = Spawner(self.name)

    async def prepare(self, image: str | None) -> None:
        if image is not None:
            raise SandboxFault("the local runtime has no images: leave image out", code="image_unsupported")

    async def start(self, spec: SandboxSpec) -> ServedSandbox:
        await self.prepare(spec.image)
        check_binds(spec)
        shown = [bind for bind in spec.binds if not bind.own or _in_workdir(bind, spec) is None]
        if shown or spec.fakeroot:
            what = "neither fakeroot nor binds, but for own folders in the working directory, which are copied"
            raise SandboxFault(f"the local runtime has {what}", code="unsupported")
        return await start_or_undo(self._start(spec))

    async def _start(self, spec: SandboxSpec) -> ServedSandbox:
        folder = _make_folder(self._settings.scratch)
        try:
            await to_its_end(_copy_own, folder, spec)
        except BaseException:
            await _end(None, folder)
            raise
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        python, _ = host.interpreter(self._settings.python)
        token = Token()
        token_fd = token.pipe()
        argv = [python, "-I", "-S", "-c", BOOT, str(theirs.fileno()), str(token_fd)]
        child: Child | None = None
        try:
            with theirs:
                fds = [theirs.fileno(), token_fd]
                try:
                    child = await self._spawner.spawn(argv, pass_fds=fds, end=_kill, own_session=True)
                finally:
                    os.close(token_fd)
            hello = _hello(spec, folder, python)
            channel = await connect(ours, hello, self._settings.start_timeout, child.read_stderr, token)
        except BaseException:
            ours.close()
            await _end(child, folder)
            raise
        child.close_stderr()
        return ServedSandbox(
            id=f"local-{secrets.token_hex(6)}",
            runtime=self.name,
            workdir=hello["workdir"],
            channel=channel,
            kill=lambda: _end(child, folder),
        )

    async def sweep(self) -> int:
        """End what servers that were killed left behind: their processes and their folders."""
        return await asyncio.to_thread(_sweep, Path(self._settings.scratch or tempfile.gettempdir()))

    async def probe(self) -> Probe:
        began = time.monotonic()
        try:
            sandbox = await self.start(SandboxSpec())
        except SandboxFault as fault:
            return Probe(runtime=self.name, works=False, isolation="none", reason=str(fault))
        started = time.monotonic()
        try:
            cell = await sandbox.act("ipython", {"code": "1"}, timeout=60)
        except SandboxFault as fault:
            return Probe(runtime=self.name, works=False, isolation="none", reason=str(fault))
        finally:
            await sandbox.stop(grace=0)
        why_not = dict.fromkeys(("no_network", "fakeroot", "image", "tmp_mb"), NO_ISOLATION)
        why_not["processes"] = "RLIMIT_NPROC would count all of this user's processes"
        why_not["memory_mb"] = "holds per process (RLIMIT_AS), not for the sandbox as a whole"
        why_not["cpu_s"] = "holds per process (RLIMIT_CPU), not for the sandbox as a whole"
        if cell.outcome != "ok":
            why_not["ipython"] = cell.error or "the cell did not end"
        works = {"network", "bash", "memory_mb", "file_mb", "cpu_s"} | ({"ipython"} if cell.outcome == "ok" else set())
        names = works | why_not.keys()
        return Probe(
            runtime=self.name,
            works=True,
            isolation="none",
            start_ms=(started - began) * 1000,
            capabilities={name: name in works for name in sorted(names)},
            why_not=why_not,
        )


def _make_folder(scratch: str | None) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=scratch))
    for name in ("work", "home", "tmp"):
        (folder / name).mkdir()
    me = tree.read_process(os.getpid())
    if me is None:
        raise SandboxFault("the local runtime needs /proc", code="no_proc")
    (folder / OWNER).write_bytes(msgspec.json.encode(Owner(me.pid, me.started)))
    return folder


def _copy_own(folder: Path, spec: SandboxSpec) -> None:
    for bind in spec.binds:
        copy_folder(bind.source, folder / "work" / (_in_workdir(bind, spec) or "."))


def _in_workdir(bind: Bind, spec: SandboxSpec) -> str | None:
    """Its target relative to the working directory; ``None`` when it is not there."""
    target = PurePosixPath(bind.target)
    return str(target.relative_to(spec.workdir)) if target.is_relative_to(spec.workdir) else None


def _hello(spec: SandboxSpec, folder: Path, python: str) -> dict[str, Any]:
    env = {"PATH": host.search_path(python), "HOME": str(folder / "home"), "LANG": "C.UTF-8", "TERM": "dumb"}
    env |= {
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        "MPLBACKEND": "Agg",
        "TMPDIR": str(folder / "tmp"),
        "SHELL": "/bin/bash",
    }
    return {
        "protocol": frames.PROTOCOL,
        "uid": None,
        "limits": msgspec.to_builtins(spec.limits) | {"processes": None},
        "env": env | spec.env | {MARK: str(folder)},
        "workdir": str(folder / "work"),
        "root": str(folder),
        "python": python,
    }


async def _kill(child: Child) -> None:
    child.kill()
    await child.wait()
    child.close_stderr()


async def _end(child: Child | None, folder: Path) -> None:
    """End the tree below the server while that still holds it together, then the server, then whoever escaped."""
    if child:
        leader = tree.read_process(child.pid)
        await asyncio.to_thread(tree.signal_tree, child.pid, signal.SIGKILL)
        await _kill(child)
        await asyncio.to_thread(_kill_escaped, folder, leader)
    await asyncio.to_thread(_remove, folder)


def _kill_escaped(folder: Path, leader: tree.Process | None) -> int:
    """SIGKILL what carries the folder's mark or belongs to the session that ``leader`` began; returns how many."""
    mark = f"{MARK}={folder}".encode()
    killed: set[tuple[int, int]] = set()

    def belongs(process: tree.Process) -> bool:
        # The leader's start time tells its session from a later one under the same, recycled number.
        own = leader is not None and process.session == leader.pid and process.started >= leader.started
        return own or _carries(process.pid, mark)

    while True:
        new = [process for process in tree.processes() if (process.pid, process.started) not in killed]
        found = [process for process in new if belongs(process)]
        if not found:
            return len(killed)
        for process in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGKILL)
            killed.add((process.pid, process.started))


def _carries(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _sweep(scratch: Path) -> int:
    ended = 0
    for folder in scratch.glob(f"{PREFIX}*"):
        try:
            if folder.is_symlink() or folder.lstat().st_uid != os.geteuid():
                continue
            owner = msgspec.json.decode((folder / OWNER).read_bytes(), type=Owner)
        except (OSError, msgspec.MsgspecError):
            continue  # not ours, or only just being made
        process = tree.read_process(owner.pid)
        if process is None or process.started != owner.started or process.state in "ZX":
            ended += _kill_escaped(folder, None) + 1
            _remove(folder)
    return ended


def _remove(folder: Path) -> None:
    """The agent may have taken its own directories' permissions away."""
    for directory, names, _ in os.walk(folder):
        for name in names:
            path = Path(directory, name)
            if not path.is_symlink():
                with contextlib.suppress(OSError):
                    path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
