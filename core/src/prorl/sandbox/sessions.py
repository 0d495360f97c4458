"""Processes by session, for what leaves its parent and its process group but not its session: FUSE daemons.

A pid is worth something only with its start time. The number of a session is not given away again while any process of
it lives, so a session is still the one we began as long as one *witness* lives: a process seen in it earlier that has
the same start time now.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable

import msgspec

from prorl.sandbox.inside import tree

GONE_WITHIN = 5.0


class Witness(msgspec.Struct, frozen=True):
    """A process that cannot be mistaken for a later one with its number."""

    pid: int
    started: int

    def alive(self) -> bool:
        process = tree.read_process(self.pid)
        return process is not None and process.started == self.started and process.state not in "ZX"


def witness(pid: int) -> Witness | None:
    """``None`` when there is no such process."""
    process = tree.read_process(pid)
    return Witness(process.pid, process.started) if process else None


def members(session: int) -> list[Witness]:
    """Who is in the session now, zombies left out."""
    return [Witness(process.pid, process.started) for process in tree.processes() if process.session == session]


def end(session: int, witnesses: Iterable[Witness] | None = None) -> int:
    """SIGKILL a whole session, if it is still the one of ``witnesses``; returns how many processes were ended.

    Without witnesses the caller vouches for the number, by having not reaped the session's leader yet. Returns when
    none is left. Blocks for a few milliseconds: everything in /proc is read at least once.
    """
    known = None if witnesses is None else set(witnesses)
    killed: set[Witness] = set()
    deadline = time.monotonic() + GONE_WITHIN
    while time.monotonic() < deadline:
        now = set(members(session))
        if not now or (known is not None and not now & known):
            break
        if known is not None:
            known |= now  # those killed just now may live a moment longer: as good a witness as any
        for process in now - killed:
            kill(process)
            killed.add(process)
        time.sleep(0.002)
    return len(killed)


def kill(process: Witness, number: int = signal.SIGKILL) -> None:
    """Signal exactly this process: by pidfd, opened before its start time is looked at."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        pidfd = os.pidfd_open(process.pid)
        try:
            if process.alive():
                signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)
