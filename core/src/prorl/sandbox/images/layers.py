"""Run as root before the sandbox: an image, and folders of the host, under writable layers of the sandbox's own.

A sandbox of a server that is root runs as a uid of its own, and files of an image belong to uid 0: without more, an
agent could write to none of them. So the image is mounted once more with its ids shifted (an idmapped mount): what is
root's on disk is the agent's in this sandbox, and in this sandbox alone. Where that cannot be done (FUSE, NFS, kernels
before 5.19) the agent may only read what is root's. The overlay is mounted here and not by bwrap, which would leave the
image's device nodes alive: for a server that is root they would be the host's devices. A folder of the host that is to
be the sandbox's own (``Bind.own``) is laid out in the same way, its owner's files becoming the agent's; where it cannot
be, it is copied into the tmpfs, which grows by what the copy takes. Standard library only.
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
MS_REMOUNT = 32
IMAGE = "image"
OTHERS = 65_535  # ids up to it stay what they are

BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from layers import main; main(sys.argv[2:])"


def command(
    program: Sequence[str],
    *,
    top: str,
    tmp_mb: int | None,
    uid: int,
    image: str | None = None,
    own: Sequence[str] = (),
    must_shift: bool = False,
) -> list[str]:
    """Have ``top`` be a tmpfs of ``tmp_mb``, show the image and the ``own`` folders there (:func:`merged`), writable by
    ``uid``; then become ``program``.
    """
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH120, PTH100
    how = "must" if must_shift else "may"
    boot = [sys.executable, "-I", "-S", "-c", BOOT, here]
    return [*boot, top, str(tmp_mb or 0), str(uid), how, image or "", *own, "--", *program]


def merged(top: str, name: str) -> str:
    """Where a layered folder is to be seen: :data:`IMAGE`, or an own folder by its index."""
    return f"{top}/{name}/merged"


def main(arguments: list[str]) -> None:
    top, tmp_mb, uid, how, image, *more = arguments
    own, program = more[: more.index("--")], more[more.index("--") + 1 :]
    tmpfs = Tmpfs(ctypes.CDLL(None, use_errno=True), top, int(tmp_mb))
    try:
        if image:
            tmpfs.lay(image, IMAGE, int(uid), must_shift=how == "must")
        for index, source in enumerate(own):
            try:
                tmpfs.lay(source, str(index), int(uid), must_shift=True, owner=os.stat(source))  # noqa: PTH116
            except OSError:
                tmpfs.copy(source, str(index), int(uid))
    except OSError as error:
        os.write(2, f"cannot lay a writable layer over the image: {error}\n".encode())
        os._exit(1)
    os.execvp(program[0], program)  # noqa: S606


class Tmpfs:
    """Where the layers are; ``size_mb`` is 0 without a bound."""

    def __init__(self, libc: ctypes.CDLL, top: str, size_mb: int) -> None:
        self._libc = libc
        self._top = top
        self._size_mb = size_mb
        self._mount()

    def lay(self, source: str, name: str, uid: int, *, must_shift: bool, owner: os.stat_result | None = None) -> None:
        """An overlay over ``source``. Without an ``owner`` it is root's files that become ``uid``'s."""
        at = f"{self._top}/{name}"
        for directory in (at, *(f"{at}/{part}" for part in ("upper", "work", "lower", "merged"))):
            os.mkdir(directory, 0o755)  # noqa: PTH102
        ids = (owner.st_uid, owner.st_gid) if owner else (0, 0)
        if clone(self._libc, source, f"{at}/lower", ids, uid, must_shift=must_shift):
            os.chown(f"{at}/upper", uid, uid)
        if owner:
            os.chmod(f"{at}/upper", owner.st_mode & 0o7777)  # noqa: PTH101
        layers = f"lowerdir={at}/lower,upperdir={at}/upper,workdir={at}/work"
        mount(self._libc, "overlay", merged(self._top, name), layers)

    def copy(self, source: str, name: str, uid: int) -> None:
        if self._size_mb:
            self._size_mb += megabytes(source)
            self._mount(MS_REMOUNT)
        to = merged(self._top, name)
        for argv in (["cp", "-a", f"{source}/.", to], ["chown", "-hR", f"{uid}:{uid}", to]):
            if os.spawnvp(os.P_WAIT, argv[0], argv) != 0:  # noqa: S606
                raise OSError(f"{source} cannot be copied")

    def _mount(self, flags: int = 0) -> None:
        size = f"size={self._size_mb}m," if self._size_mb else ""
        mount(self._libc, "tmpfs", self._top, f"{size}mode=0755", flags)


def megabytes(folder: str) -> int:
    """What a copy of it takes, rounded up."""
    size = 0
    for directory, _, names in os.walk(folder):
        size += 4096 + sum((os.lstat(f"{directory}/{name}").st_size + 4095) // 4096 * 4096 for name in names)
    return (size >> 20) + 1


def mount(libc: ctypes.CDLL, kind: str, at: str, options: str, more_flags: int = 0) -> None:
    flags = ctypes.c_ulong(MS_NOSUID | MS_NODEV | more_flags)
    _check(libc.mount(b"prorl", os.fsencode(at), kind.encode(), flags, os.fsencode(options)), f"mount {kind}")


def clone(libc: ctypes.CDLL, source: str, target: str, ids: tuple[int, int], uid: int, *, must_shift: bool) -> bool:
    """Mount ``source`` at ``target`` too, what has these ids (of user and group) there being ``uid``'s if that can be;
    says whether it could.
    """
    flags = ctypes.c_uint(OPEN_TREE_CLONE | os.O_CLOEXEC)
    tree = _check(libc.syscall(OPEN_TREE, AT_FDCWD, os.fsencode(source), flags), "open_tree")
    shifted = True
    try:
        try:
            shift(libc, tree, ids, uid)
        except OSError:
            if must_shift:
                raise
            shifted = False
        moved = libc.syscall(MOVE_MOUNT, tree, b"", AT_FDCWD, os.fsencode(target), MOVE_MOUNT_F_EMPTY_PATH)
        _check(moved, "move_mount")
    finally:
        os.close(tree)
    return shifted


def shift(libc: ctypes.CDLL, tree: int, ids: tuple[int, int], uid: int) -> None:
    namespace = user_namespace(libc, mapping(ids[0], uid), mapping(ids[1], uid))
    try:
        attributes = struct.pack("QQQQ", MOUNT_ATTR_IDMAP, 0, 0, namespace)
        size = ctypes.c_size_t(len(attributes))
        _check(libc.syscall(MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH, attributes, size), "shift the ids")
    finally:
        os.close(namespace)


def mapping(owner: int, uid: int) -> str:
    """``owner`` becomes ``uid``, the others up to :data:`OTHERS` stay, as far as ``uid`` is none of them."""
    lines = [(owner, uid, 1)]
    if uid > OTHERS:
        last = min(owner, OTHERS + 1)
        lines += [(0, 0, last), (owner + 1, owner + 1, OTHERS - owner)]
    return "".join(f"{inside} {outside} {count}\n" for inside, outside, count in lines if count > 0)


def user_namespace(libc: ctypes.CDLL, uids: str, gids: str) -> int:
    """A descriptor of a user namespace with these mappings and nobody in it."""
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
        for kind, lines in (("uid", uids), ("gid", gids)):
            with open(f"/proc/{child}/{kind}_map", "w") as file:  # noqa: PTH123
                file.write(lines)
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
