"""The first thing that runs inside an Apptainer container: lose the rights Apptainer leaves to it, then serve.

Run by the image's own python3 (3.8 or newer) with ``-I -S``, as the pid namespace's init; standard library only. The
connection is an inherited descriptor of a socket pair, which has no name: nobody else can speak for this sandbox, so
there is nothing to authenticate. The seccomp filter is inherited too.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

PR_CAPBSET_READ = 23
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
SECCOMP_MODE_FILTER = 2
CAPABILITY_VERSION_3 = 0x20080522
INSTRUCTION = 8  # bytes

# What installing packages and changing users takes; Docker's default set without MKNOD, NET_RAW and AUDIT_WRITE.
FAKEROOT = (0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 31)


OF_APPTAINER = ("APPTAINER", "SINGULARITY")  # what it tells of itself and of the host, in the image's environment


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def keep_capabilities(kept: tuple[int, ...]) -> None:
    """Lose all others, in every set, for good."""
    libc = ctypes.CDLL(None, use_errno=True)
    capability = 0
    while libc.prctl(PR_CAPBSET_READ, ctypes.c_ulong(capability)) >= 0:
        if capability not in kept:
            libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability))
        capability += 1
    libc.prctl(PR_CAP_AMBIENT, ctypes.c_ulong(PR_CAP_AMBIENT_CLEAR_ALL), 0, 0, 0)
    mask = sum(1 << number for number in kept) & _permitted()
    low, high = mask & 0xFFFFFFFF, mask >> 32
    sets = struct.pack("6I", low, low, 0, high, high, 0)
    if libc.capset(struct.pack("Ii", CAPABILITY_VERSION_3, 0), sets) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def _permitted() -> int:
    with open("/proc/self/status") as status:  # noqa: PTH123
        return next(int(line.split()[1], 16) for line in status if line.startswith("CapPrm:"))


def filter_syscalls(program: bytes) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    content = Program(len(program) // INSTRUCTION, program)
    libc.prctl(PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))
    if libc.prctl(PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), ctypes.byref(content)) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


def main(fd: int, filter_fd: int, fakeroot: bool) -> None:
    if filter_fd >= 0:
        program = os.read(filter_fd, 1 << 16)
        os.close(filter_fd)
        filter_syscalls(program)
    if fakeroot:
        keep_capabilities(FAKEROOT)
    for name in list(os.environ):
        if name.startswith(OF_APPTAINER) or name in ("PS1", "PROMPT_COMMAND", "PWD", "HOME"):
            del os.environ[name]
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH120, PTH100
    from inside.server import main as serve  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415

    serve(fd)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "fakeroot")
