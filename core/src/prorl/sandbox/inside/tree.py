"""Who is whose child: finding and ending everything an action started.

The action server is a child subreaper, so whatever it started stays below it however often it forks and calls setsid.
Start times (clock ticks since boot) tell an action's processes from older ones that share their parent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from typing import NamedTuple


def read(path: str) -> bytes:
    """pathlib would do, and costs a sixth of the server's start."""
    with open(path, "rb") as file:  # noqa: PTH123
        return file.read()


class Process(NamedTuple):
    pid: int
    parent: int
    session: int
    started: int
    state: str


def read_process(pid: int) -> Process | None:
    """What the kernel says of ``pid``, or ``None`` when there is none."""
    try:
        stat = read(f"/proc/{pid}/stat")
    except OSError:
        return None
    # The name, in parentheses, may hold anything: cut after the last one.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return Process(pid, int(fields[1]), int(fields[3]), int(fields[19]), fields[0].decode())


def processes() -> list[Process]:
    """Everything alive that /proc shows, zombies left out."""
    found = (read_process(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - much faster
    return [process for process in found if process is not None and process.state not in "ZX"]


class Moment(NamedTuple):
    """A point in time to compare starts of processes with. A clock tick is long (10 ms), so within one tick the order
    of pids decides: the kernel hands them out in turn.
    """

    ticks: int
    last_pid: int

    @classmethod
    def now(cls) -> Moment:
        ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
        return cls(ticks, int(read("/proc/loadavg").split()[-1]))

    def precedes(self, process: Process) -> bool:
        return (process.started, process.pid) > (self.ticks, self.last_pid)


BOOT = Moment(-1, 0)


def descendants(
    root: int, since: Moment = BOOT, *, through: Iterable[int] = (), beside: Iterable[int] = ()
) -> list[Process]:
    """Processes below ``root`` that started after ``since``.

    An older process hides what is below it, and so do those named in ``beside``; those named in ``through`` are walked
    through and not listed.
    """
    below: dict[int, list[Process]] = {}
    for process in processes():
        below.setdefault(process.parent, []).append(process)
    gates, hidden = frozenset(through), frozenset(beside)
    found = []
    pending = [root]
    while pending:
        for child in below.get(pending.pop(), ()):
            if child.pid in gates:
                pending.append(child.pid)
            elif child.pid not in hidden and since.precedes(child):
                found.append(child)
                pending.append(child.pid)
    return found


def signal_tree(
    root: int, number: int, since: Moment = BOOT, *, through: Iterable[int] = (), beside: Iterable[int] = ()
) -> int:
    """Signal what :func:`descendants` lists; SIGKILL repeats until nothing new appears. Returns how many were hit."""
    hit: set[tuple[int, int]] = set()
    for _ in range(100):
        below = descendants(root, since, through=through, beside=beside)
        targets = [process for process in below if (process.pid, process.started) not in hit]
        for process in targets:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, number)
            hit.add((process.pid, process.started))
        if not targets or number != signal.SIGKILL:
            break
    return len(hit)
