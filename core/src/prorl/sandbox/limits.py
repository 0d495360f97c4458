"""Limits on a sandbox as a whole, by control groups where we may make some: memory and the number of processes.

Everywhere else a limit holds per process (rlimits, set by the action server): file size and CPU seconds always, memory
and processes where there is no control group. Whatever holds only in part is said in the probe's ``why_not``.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

from prorl.api.sandbox import Limits

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
NPROC_PER_NAMESPACE = (5, 14)  # the Linux that counts RLIMIT_NPROC per user namespace, not over all of a user's
EMPTY_WITHIN = 1.0
# $1 how many groups, then their cgroup.procs files, then the command line: whoever it starts is in them from the start.
ENTER = 'n=$1; shift; while [ "$n" -gt 0 ]; do echo $$ >"$1" || exit 1; shift; n=$((n - 1)); done; exec "$@"'
PER_PROCESS = "holds per process ({}), not for the sandbox as a whole"


class ControlGroups:
    """Which controllers we may use: a folder of ours that exists already, below which groups can be made."""

    def __init__(self, mounted: Path = CGROUPS, membership: Path = MEMBERSHIP) -> None:
        self._parents: dict[str, Path] = {}
        with contextlib.suppress(OSError):
            for line in membership.read_text().splitlines():
                _, controllers, path = line.split(":", 2)
                if controllers:
                    self._find_v1(mounted, controllers.split(","), path)
                else:
                    self._find_v2(mounted, path)

    def has(self, controller: str) -> bool:
        return controller in self._parents

    def _find_v1(self, mounted: Path, controllers: list[str], path: str) -> None:
        for name in {"memory", "pids"}.intersection(controllers):
            # In a container the path may be the host's, and what is mounted is our own group.
            own = mounted / name / path.lstrip("/")
            parent = own if own.is_dir() else mounted / name
            if (parent / "cgroup.procs").exists() and os.access(parent, os.W_OK):
                self._parents[name] = parent

    def _find_v2(self, mounted: Path, path: str) -> None:
        for top in (mounted, mounted / "unified"):
            parent = top / path.lstrip("/")
            with contextlib.suppress(OSError):
                # Only what is delegated to children already: switching it on would move processes that aren't ours.
                for name in (parent / "cgroup.subtree_control").read_text().split():
                    if name in ("memory", "pids") and os.access(parent, os.W_OK):
                        self._parents.setdefault(name, parent)

    def make(self, id: str, limits: Limits) -> list[Path]:
        """The groups of one sandbox, with its limits set. Raises :class:`OSError`; nothing is left then."""
        made: list[Path] = []
        try:
            for name, parent in self._parents.items():
                group = parent / group_name(id)
                for file, value in _values(name, limits).items():
                    group.mkdir(exist_ok=True)
                    if group not in made:
                        made.append(group)
                    if (group / file).exists():
                        (group / file).write_text(value)
        except OSError:
            remove(made)
            raise
        return made

    def find(self, id: str) -> list[Path]:
        """The groups that a sandbox has, or had when its server was killed."""
        found = {parent / group_name(id) for parent in self._parents.values()}
        return [group for group in found if group.is_dir()]


def group_name(id: str) -> str:
    return f"prorl-{id}"


def _values(controller: str, limits: Limits) -> dict[str, str]:
    """By file name, of either version; the kernel shows which of them there are."""
    if controller == "memory" and limits.memory_mb:
        size = str(limits.memory_mb << 20)
        return {"memory.max": size, "memory.swap.max": "0", "memory.oom.group": "0", "memory.limit_in_bytes": size}
    if controller == "pids" and limits.processes:
        return {"pids.max": str(limits.processes)}
    return {}


def enter(groups: list[Path], command: list[str]) -> list[str]:
    """The command line that runs ``command`` in the groups."""
    if not groups:
        return command
    files = [str(group / "cgroup.procs") for group in groups]
    return ["sh", "-c", ENTER, "sh", str(len(files)), *files, *command]


def remove(groups: list[Path]) -> None:
    """Blocks until the kernel has noticed that all their processes are gone, a second at most."""
    deadline = time.monotonic() + EMPTY_WITHIN
    for group in groups:
        while True:
            try:
                group.rmdir()
            except FileNotFoundError:
                break
            except OSError:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.005)
            else:
                break


def kernel() -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def rlimits(limits: Limits, groups: list[Path], *, own_uid: bool) -> Limits:
    """What the action server is to set of it. ``own_uid``: no other sandbox has the same uid on this machine."""
    in_memory = any((group / file).exists() for group in groups for file in ("memory.max", "memory.limit_in_bytes"))
    counted = own_uid or kernel() >= NPROC_PER_NAMESPACE
    return Limits(
        memory_mb=None if in_memory else limits.memory_mb,
        processes=limits.processes if counted else None,
        file_mb=limits.file_mb,
        cpu_s=limits.cpu_s,
        tmp_mb=limits.tmp_mb,
    )


def holding(groups: ControlGroups, *, own_uid: bool) -> tuple[dict[str, str], dict[str, str]]:
    """``(why not, notes)`` for the probe, by name of the limit: what is not enforced, and what is only in part."""
    why_not: dict[str, str] = {}
    notes = {"cpu_s": PER_PROCESS.format("RLIMIT_CPU")}
    if not groups.has("memory"):
        notes["memory_mb"] = (
            PER_PROCESS.format("RLIMIT_AS")
            + ": no writable memory control group (delegate one to the server to have it)"
        )
    if not groups.has("pids") and not own_uid and kernel() < NPROC_PER_NAMESPACE:
        why_not["processes"] = (
            "before Linux 5.14 RLIMIT_NPROC counts all of this user's processes, other sandboxes' too"
        )
    return why_not, notes
