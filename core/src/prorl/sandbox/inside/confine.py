"""What the action server does to itself before anything of the agent's runs: limits, and one's privileges for good.

Under a runtime that had to start as real root the server still holds CAP_SETUID, CAP_SETGID and CAP_SETPCAP at this
point, and nothing else.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_READ = 23
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
CAPABILITY_VERSION_3 = 0x20080522


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies (Linux 3.4)."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def hide() -> None:
    """Nobody of the same uid may trace us or read our memory and descriptors."""
    _prctl(PR_SET_DUMPABLE, 0)


def die_with_parent() -> None:
    """SIGKILL when our parent ends. The kernel forgets an earlier request when the uid changes."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def drop_privileges(uid: int, gid: int) -> None:
    """Become ``uid`` for good: no groups, no capability in any set, none to be had by exec."""
    capability = 0
    while _prctl(PR_CAPBSET_READ, capability) >= 0:
        _prctl(PR_CAPBSET_DROP, capability)
        capability += 1
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    header = struct.pack("Ii", CAPABILITY_VERSION_3, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.capset(header, bytes(24)) != 0:
        raise OSError(ctypes.get_errno(), "capset")
    if _prctl(PR_SET_NO_NEW_PRIVS, 1) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")


def limit(limits: dict[str, Any]) -> None:
    """Set the limits that hold per process. ``cpu_s`` is not for the server: see :func:`limit_cpu`."""
    _lower(resource.RLIMIT_CORE, 0)
    if limits.get("memory_mb"):
        _lower(resource.RLIMIT_AS, int(limits["memory_mb"]) << 20)
    if limits.get("file_mb"):
        _lower(resource.RLIMIT_FSIZE, int(limits["file_mb"]) << 20)
    if limits.get("processes"):
        _lower(resource.RLIMIT_NPROC, int(limits["processes"]))


def limit_cpu(seconds: int | None) -> None:
    if seconds:
        _lower(resource.RLIMIT_CPU, seconds)


def _lower(what: int, value: int) -> None:
    hard = resource.getrlimit(what)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(what, (value, value))


def _prctl(option: int, value: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)))
