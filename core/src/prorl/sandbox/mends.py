"""What stands in a sandbox's way on a machine, and what to do about it, as far as can be told from outside."""

from __future__ import annotations

import os
from pathlib import Path

SYSCTL = Path("/proc/sys")
STATUS = Path("/proc/self/status")
CAP_SYS_ADMIN = 21
APPARMOR = (
    "load an AppArmor profile with `userns,` for the program (Apptainer's packages bring one), "
    "or sysctl kernel.apparmor_restrict_unprivileged_userns=0"
)
NAMESPACES = (
    # file below /proc/sys, the value that forbids them, what to do about it
    ("user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=15000"),
    ("kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
    ("kernel/apparmor_restrict_unprivileged_userns", "1", APPARMOR),
)


def explain(fault: str, *, sysctl: Path = SYSCTL, status: Path = STATUS, uid: int | None = None) -> str:
    """What the runtime said, and what to do where that can be told."""
    uid = os.geteuid() if uid is None else uid
    if uid == 0:
        effective = int(status.read_text().split("CapEff:", 1)[1].split(None, 1)[0], 16)
        if not effective >> CAP_SYS_ADMIN & 1:
            return f"{fault}; this root lacks CAP_SYS_ADMIN, as in most containers: run the server as an ordinary user"
        return fault
    for name, forbidding, mend in NAMESPACES:
        try:
            value = (sysctl / name).read_text().strip()
        except OSError:
            continue
        if value == forbidding:
            where = name.replace("/", ".")
            return f"{fault}; user namespaces are off here ({where} = {value}): as root, {mend}"
    if "unknown userid" in fault or "user: unknown" in fault:
        return f"{fault}; uid {uid} has no entry in the user database (getent passwd {uid})"
    return fault
