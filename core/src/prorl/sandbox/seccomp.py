"""A seccomp filter that keeps the agent from making user namespaces.

Where bwrap runs as an ordinary user ``--disable-userns`` does this. As real root there is no user namespace of ours to
close, and a fresh one would hand the agent a full set of capabilities to try on the kernel.
"""

from __future__ import annotations

import os
import platform
import struct
from typing import NamedTuple

CLONE_NEWUSER = 0x10000000
X32_BIT = 0x40000000
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data (little-endian argument)
ALLOW = 0x7FFF0000
ERRNO = 0x00050000
EPERM, ENOSYS = 1, 38


class Machine(NamedTuple):
    architecture: int
    clone: int
    clone3: int
    unshare: int


MACHINES = {
    "x86_64": Machine(0xC000003E, 56, 435, 272),
    "aarch64": Machine(0xC00000B7, 220, 435, 97),
}


def supported() -> bool:
    return platform.machine() in MACHINES


def no_user_namespaces() -> int:
    """A descriptor to hand to ``bwrap --seccomp``. clone3 takes its flags by pointer, which a filter cannot read: it
    is answered with ENOSYS, and libc falls back to clone.
    """
    machine = MACHINES[platform.machine()]
    program = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, machine.architecture),
        (RETURN, 0, 0, ERRNO | EPERM),  # 32-bit programs
        (LOAD, 0, 0, NUMBER),
        (AT_LEAST, 0, 1, X32_BIT),
        (RETURN, 0, 0, ERRNO | EPERM),
        (EQUAL, 0, 1, machine.clone3),
        (RETURN, 0, 0, ERRNO | ENOSYS),
        (EQUAL, 2, 0, machine.clone),
        (EQUAL, 1, 0, machine.unshare),
        (RETURN, 0, 0, ALLOW),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (ANY_BIT, 0, 1, CLONE_NEWUSER),
        (RETURN, 0, 0, ERRNO | EPERM),
        (RETURN, 0, 0, ALLOW),
    ]
    fd = os.memfd_create("seccomp")
    os.write(fd, b"".join(struct.pack("HBBI", *instruction) for instruction in program))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
