"""What a program may not do: limits of its process, and system calls that are refused.

Refused is what a program could keep something in that outlives it (System V objects, message queues, the user's keys),
memory that no limit counts (memory files), and looking into other processes.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct

TYPE_CHECKING = False  # typing's own costs its import
if TYPE_CHECKING:
    from typing import Any

PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 4, 22, 36, 38
SECCOMP_MODE_FILTER = 2
RLIMIT_NICE, RLIMIT_RTPRIO = 13, 14
STACK = 64 << 20
OPEN_FILES = 256
X32_BIT = 0x40000000
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050001  # EPERM
NUMBER, ARCHITECTURE = 0, 4  # offsets in struct seccomp_data
# shmget, semget, msgget, mq_open, add_key, request_key, keyctl, memfd_create, ptrace, process_vm_readv and writev,
# io_uring_setup
MACHINES = {
    "x86_64": (0xC000003E, (29, 64, 68, 240, 248, 249, 250, 319, 101, 310, 311, 425)),
    "aarch64": (0xC00000B7, (194, 190, 186, 180, 217, 218, 219, 279, 117, 270, 271, 425)),
}


def hide_and_adopt() -> None:
    """Nobody of the same user may read our memory, where the inputs are; and whoever loses his parent becomes ours."""
    prctl(PR_SET_DUMPABLE, 0)
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def confine(limits: dict[str, Any]) -> None:
    """Bind the calling process, and what it will start, for good."""
    lower(resource.RLIMIT_CORE, 0)
    lower(RLIMIT_NICE, 0)
    lower(RLIMIT_RTPRIO, 0)
    lower(resource.RLIMIT_CPU, int(limits["cpu_s"]) + 2)
    lower(resource.RLIMIT_AS, limits["memory_mb"] << 20)
    lower(resource.RLIMIT_FSIZE, limits["output_bytes"])
    lower(resource.RLIMIT_NOFILE, OPEN_FILES)
    lower(resource.RLIMIT_STACK, STACK)
    refuse_calls()


def lower(what: int, value: int) -> None:
    hard = resource.getrlimit(what)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(what, (value, value))


def refuse_calls() -> None:
    """By a seccomp filter. On a machine whose numbers are not known here nothing is refused."""
    architecture, refused = MACHINES.get(os.uname().machine, (0, ()))
    if not refused:
        return
    program = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, REFUSE),  # 32-bit programs
        (LOAD, 0, 0, NUMBER),
        (AT_LEAST, 0, 1, X32_BIT),
        (RETURN, 0, 0, REFUSE),
    ]
    program += [(EQUAL, len(refused) - index, 0, number) for index, number in enumerate(refused)]
    program += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(header))


def prctl(option: int, value: int, pointer: int = 0) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    if libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(pointer), zero, zero) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")
