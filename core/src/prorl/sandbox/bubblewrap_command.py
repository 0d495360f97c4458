"""The command line of one bubblewrap: the namespaces, what is shown in them, and the action server that is started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from prorl.api.sandbox import SandboxSpec
from prorl.sandbox import seccomp
from prorl.sandbox.images import view
from prorl.sandbox.inside import frames
from prorl.sandbox.shown import BASH, Shown

INSIDE = Path(frames.__file__).parent
INSIDE_AT = "/run/prorl"
CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")
BOOT = f"import sys; sys.path.insert(0, {INSIDE_AT!r}); from inside.server import main; main(int(sys.argv[1]))"


class Descriptors:
    """What a child inherits. Those made here are closed when the child has its own."""

    def __init__(self, *inherited: int) -> None:
        self.all = list(inherited)
        self._own = [inherited[1]]

    def adopt(self, fd: int) -> int:
        self.all.append(fd)
        self._own.append(fd)
        return fd

    def data(self, content: bytes) -> int:
        fd = self.adopt(os.memfd_create("content"))
        os.write(fd, content)
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._own:
            os.close(fd)


def command(
    bwrap: str, spec: SandboxSpec, shown: Shown, fds: Descriptors, *, uid: int, as_root: bool, copied: bool
) -> list[str]:
    """``fds`` begins with the action server's end of the channel and the pipe that bwrap tells the init's pid to.

    ``copied``: the sandbox's own folders are copied, for overlays cannot be laid over them.
    """
    channel, informed = fds.all
    options = [
        *_namespaces(spec, uid, fds, as_root=as_root),
        *shown.options,
        *_view(spec, shown, fds, as_root=as_root, copied=copied),
    ]
    program = [*shown.before, bwrap, "--info-fd", str(informed), *options]
    return [*program, "--", *_action_server(shown), str(channel)]


def _namespaces(spec: SandboxSpec, uid: int, fds: Descriptors, *, as_root: bool) -> Iterator[str]:
    yield from ("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--hostname", "sandbox")
    # The action server is the namespace's init: nothing inside can kill it, and bwrap, its parent, reaps it.
    yield from ("--die-with-parent", "--as-pid-1", "--new-session", "--clearenv")
    if not spec.network:
        yield "--unshare-net"
    if not as_root:
        yield from ("--unshare-user", "--disable-userns", "--uid", str(uid), "--gid", str(uid))
        yield from ("--cap-drop", "ALL")
        return
    yield from ("--cap-drop", "ALL")
    for capability in CAPABILITIES:
        yield from ("--cap-add", capability)
    if seccomp.supported():
        yield from ("--seccomp", str(fds.adopt(seccomp.no_user_namespaces())))


def _view(spec: SandboxSpec, shown: Shown, fds: Descriptors, *, as_root: bool, copied: bool) -> Iterator[str]:
    size = ("--size", str(spec.limits.tmp_mb << 20)) if spec.limits.tmp_mb else ()
    yield from ("--proc", "/proc", "--dev", "/dev")
    for path, content in shown.files.items():
        yield from ("--perms", "0444", "--ro-bind-data", str(fds.data(content.encode())), path)
    for path in ("/tmp", "/dev/shm"):  # noqa: S108
        yield from ("--perms", "1777", *size, "--tmpfs", path)
    if shown.workdir:
        yield from _directories(spec.workdir)
        yield from ("--perms", "0777", *size, "--tmpfs", spec.workdir)
    for path in shown.binds:
        yield from (*_directories(path), "--ro-bind", path, path)
    yield from (*_directories(f"{INSIDE_AT}/inside"), "--ro-bind", str(INSIDE), f"{INSIDE_AT}/inside")
    own = 0
    for bind in spec.binds:
        yield from _directories(bind.target)
        if bind.own:
            yield from view.own_folder(own, bind.source, bind.target, is_root=as_root, copied=copied)
            own += 1
        else:
            yield from ("--bind" if bind.writable else "--ro-bind", bind.source, bind.target)
    # What is left writable is capped. An ordinary user owns the two tmpfs that bwrap makes without a cap.
    yield from ("--remount-ro", "/dev", *(("--remount-ro", "/") if shown.read_only else ()), "--chdir", "/")


def _action_server(shown: Shown) -> list[str]:
    if shown.python is None:
        return [BASH, "--noprofile", "--norc", f"{INSIDE_AT}/inside/bare.sh"]
    return [shown.python, "-I", "-S", "-c", BOOT]


def _directories(path: str) -> Iterator[str]:
    """bwrap makes a bind's missing parents as private as the host's are, and then the agent's uid cannot pass."""
    for parent in reversed(Path(path).parents[:-1]):
        yield from ("--perms", "0755", "--dir", str(parent))
