"""What a process of tests may not do to the supervisor, which is of the same user: look into it, or take from it."""

import ctypes
import os
import struct

PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 4, 22, 36, 38
SECCOMP_MODE_FILTER = 2
X32_BIT = 0x40000000
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050001  # EPERM
NUMBER, ARCHITECTURE = 0, 4  # offsets in struct seccomp_data
# ptrace, process_vm_readv, process_vm_writev, pidfd_getfd
MACHINES = {"x86_64": (0xC000003E, (101, 310, 311, 438)), "aarch64": (0xC00000B7, (117, 270, 271, 438))}


def hide_and_adopt() -> None:
    """Nobody of the same user may read our memory or our descriptors; and whoever loses his parent becomes ours."""
    _prctl(PR_SET_DUMPABLE, 0)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def refuse_calls() -> None:
    """For the calling process and all that it starts. On a machine whose numbers are not known nothing is refused."""
    architecture, refused = MACHINES.get(os.uname().machine, (0, ()))
    if not refused:
        return
    program = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, architecture), (RETURN, 0, 0, ALLOW), (LOAD, 0, 0, NUMBER)]
    program += [(AT_LEAST, 0, 1, X32_BIT), (RETURN, 0, 0, REFUSE)]
    program += [(EQUAL, len(refused) - index, 0, number) for index, number in enumerate(refused)]
    program += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    _prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(header))


def _prctl(option: int, value: int, pointer: int = 0) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    if libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(pointer), zero, zero) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")
