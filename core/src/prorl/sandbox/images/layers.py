"""Run as root before bwrap: an image under a writable layer of the sandbox's own.

A sandbox of a server that is root runs as a uid of its own, and files of an image belong to uid 0: without more, an
agent could write to none of them. So the image is mounted once more with its ids shifted (an idmapped mount): what is
root's on disk is the agent's in this sandbox, and in this sandbox alone. Where that cannot be done (FUSE, NFS, kernels
before 5.19) the agent may only read what is root's. The overlay is mounted here and not by bwrap, which would leave the
image's device nodes alive: for a server that is root they would be the host's devices. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Sequence

# Numbers of system calls added since Linux 5.1 are the same on every architecture.
OPEN_TREE = 428
MOVE_MOUNT = 429
MOUNT_SETATTR = 442
AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
OPEN_TREE_CLONE = 1
MOVE_MOUNT_F_EMPTY_PATH = 4
MOUNT_ATTR_IDMAP = 0x00100000
CLONE_NEWUSER = 0x10000000
MS_NOSUID = 2
MS_NODEV = 4
OTHERS = 65_535  # ids above root's stay what they are

BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from layers import main; main(sys.argv[2:])"


def command(
    program: Sequence[str], *, top: str, size: str, image: str, uid: int, must_shift: bool = False
) -> list[str]:
    """Show the image at ``{top}/merged``, writable by ``uid``, with ``top`` a tmpfs; then become ``program``."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH120, PTH100
    how = "must" if must_shift else "may"
    return [sys.executable, "-I", "-S", "-c", BOOT, here, top, size, image, str(uid), how, *program]


def main(arguments: list[str]) -> None:
    top, size, image, uid, how, *program = arguments
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        mount(libc, "tmpfs", top, size)
        for name in ("upper", "work", "lower", "merged"):
            os.mkdir(f"{top}/{name}", 0o755)  # noqa: PTH102
        if clone(libc, image, f"{top}/lower", int(uid), must_shift=how == "must"):
            os.chown(f"{top}/upper", int(uid), int(uid))
        layers = f"lowerdir={top}/lower,upperdir={top}/upper,workdir={top}/work"
        mount(libc, "overlay", f"{top}/merged", layers)
    except OSError as error:
        os.write(2, f"cannot lay a writable layer over the image: {error}\n".encode())
        os._exit(1)
    os.execvp(program[0], program)  # noqa: S606


def mount(libc: ctypes.CDLL, kind: str, at: str, options: str) -> None:
    flags = ctypes.c_ulong(MS_NOSUID | MS_NODEV)
    _check(libc.mount(b"prorl", at.encode(), kind.encode(), flags, options.encode()), f"mount {kind}")


def clone(libc: ctypes.CDLL, source: str, target: str, uid: int, *, must_shift: bool) -> bool:
    """Mount ``source`` at ``target`` too, its root's files ``uid``'s if that can be; says whether it could."""
    flags = ctypes.c_uint(OPEN_TREE_CLONE | os.O_CLOEXEC)
    tree = _check(libc.syscall(OPEN_TREE, AT_FDCWD, os.fsencode(source), flags), "open_tree")
    shifted = True
    try:
        shift(libc, tree, uid)
    except OSError:
        if must_shift:
            raise
        shifted = False
    _check(libc.syscall(MOVE_MOUNT, tree, b"", AT_FDCWD, target.encode(), MOVE_MOUNT_F_EMPTY_PATH), "move_mount")
    os.close(tree)
    return shifted


def shift(libc: ctypes.CDLL, tree: int, uid: int) -> None:
    others = f"1 1 {OTHERS}\n" if uid > OTHERS else ""
    namespace = user_namespace(libc, f"0 {uid} 1\n{others}")
    try:
        attributes = struct.pack("QQQQ", MOUNT_ATTR_IDMAP, 0, 0, namespace)
        size = ctypes.c_size_t(len(attributes))
        _check(libc.syscall(MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH, attributes, size), "shift the image's ids")
    finally:
        os.close(namespace)


def user_namespace(libc: ctypes.CDLL, mapping: str) -> int:
    """A descriptor of a user namespace with this mapping and nobody in it."""
    ready, child_is_ready = os.pipe()
    done, parent_is_done = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(parent_is_done)
        if libc.unshare(CLONE_NEWUSER) == 0:
            os.write(child_is_ready, b".")
            os.read(done, 1)
        os._exit(0)
    os.close(child_is_ready)
    try:
        if not os.read(ready, 1):
            raise OSError("no user namespaces")
        for kind in ("uid", "gid"):
            with open(f"/proc/{child}/{kind}_map", "w") as file:  # noqa: PTH123
                file.write(mapping)
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(parent_is_done)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(done)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
