"""Apptainer, or Singularity as it was called, on this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from prorl.api.errors import SandboxFault

VARIABLE = "PRORL_APPTAINER"
NAMES = ("apptainer", "singularity")
MISSING = (
    "no apptainer (or singularity) here: install it, set [sandbox] apptainer or $PRORL_APPTAINER, "
    "or name a rootfs folder or a .sif instead"
)
CAP_LAST = Path("/proc/sys/kernel/cap_last_cap")
PASSED_ON = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR", "XDG_RUNTIME_DIR", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
)
PASSED_ON_FROM = ("APPTAINER_", "SINGULARITY_")


def find_apptainer(configured: str | None = None) -> str | None:
    """The configured one, that of ``$PRORL_APPTAINER``, or the first on PATH."""
    named = configured or os.environ.get(VARIABLE)
    if named:
        return named
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def require_apptainer(configured: str | None = None) -> str:
    found = find_apptainer(configured)
    if found is None or not os.access(found, os.X_OK):
        raise SandboxFault(MISSING if found is None else f"{found} is not a program that can be run", code="missing")
    return found


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """What building needs of the server's environment: where programs and credentials are, proxies; nothing else."""
    kept = {name: value for name, value in os.environ.items() if name in PASSED_ON or name.startswith(PASSED_ON_FROM)}
    return {"PATH": os.defpath, **kept, **extra}


def build_prefix() -> list[str]:
    """What to put before ``apptainer build``.

    A root that lacks a capability (root in most containers) is refused ``%post``, which asks for all of them; in a user
    namespace of its own it has them all.
    """
    if os.geteuid() != 0:
        return []
    complete = (1 << int(CAP_LAST.read_text()) + 1) - 1
    status = Path("/proc/self/status").read_text()
    effective = int(status.split("CapEff:", 1)[1].split(None, 1)[0], 16)
    return [] if effective == complete else ["unshare", "--user", "--map-root-user"]
