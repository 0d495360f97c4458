"""What a program has left in its sandbox: processes below the runner, files where anything could be written."""

# pathlib would double the time that the runner takes to start
# ruff: noqa: PTH116, PTH123, PTH208
from __future__ import annotations

import contextlib
import os
import stat

NO_FILES = ("proc", "sysfs", "devpts", "devtmpfs", "cgroup", "cgroup2", "mqueue")
MAX_FILES = 5000


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def below(root: int) -> list[int]:
    """The pids of all descendants of ``root``."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                parent = int(read(f"/proc/{name}/stat").rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found, pending = [], [root]
    while pending:
        new = children.get(pending.pop(), [])
        found += new
        pending += new
    return found


def writable_mounts() -> list[str] | None:
    """Where a program could leave something; ``None`` when that cannot be looked through."""
    found = []
    for line in read("/proc/self/mountinfo").decode("utf-8", "replace").splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        kind, options = after.split()[0], after.split()[2].split(",")
        writable = "rw" in fields[5].split(",") and "rw" in options
        if writable and kind not in NO_FILES and os.access(fields[4], os.W_OK | os.X_OK):
            found.append(fields[4])
    return None if "/" in found else found


def snapshot(places: list[str]) -> list[tuple[object, ...]] | None:
    """Everything that stands in the writable places, with what tells that it was touched; ``None``: too much.

    What is mounted inside of them is another place, or read-only.
    """
    seen: list[tuple[object, ...]] = []
    for place in places:
        device = os.stat(place).st_dev
        pending = [place]
        while pending:
            for entry in sorted(os.scandir(pending.pop()), key=lambda entry: entry.name):
                found = entry.stat(follow_symlinks=False)
                is_folder = stat.S_ISDIR(found.st_mode)
                if is_folder and found.st_dev != device:
                    continue
                if is_folder:
                    pending.append(entry.path)
                # The time of a folder changes with each run's own; who lists it sees what is new in it anyway.
                when = 0 if is_folder else (found.st_mtime_ns, found.st_ctime_ns)
                seen.append((entry.path, found.st_ino, found.st_mode, found.st_size * (not is_folder), when))
                if len(seen) > MAX_FILES:
                    return None
    return seen


def changed(places: list[str], before: list[tuple[object, ...]]) -> str | None:
    try:
        return "files" if snapshot(places) != before else None
    except OSError:  # a folder that cannot be looked into is not as it was
        return "files"
