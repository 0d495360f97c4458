"""flock, awaited. A lock belongs to an open file, so it holds between tasks, processes and (by NFS) nodes alike, and is
gone with the last process that has the file open, however that ends.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path

POLL = 0.05


async def exclusive(path: Path) -> int:
    """A descriptor that holds the lock; closing it lets it go. The file is made when it is not there."""
    _make(path)
    while (fd := try_exclusive(path)) is None:  # noqa: ASYNC110 - the kernel tells nobody
        await asyncio.sleep(POLL)
    return fd


def try_exclusive(path: Path) -> int | None:
    """``None`` while somebody else has it. Raises :class:`OSError` when there is no such file, or none of ours."""
    return _try(path, os.O_RDWR, fcntl.LOCK_EX)  # over NFS an exclusive lock needs a writable descriptor


async def shared(path: Path) -> int | None:
    """A descriptor that keeps what lies at ``path`` from being removed; ``None`` when it is not there (any more)."""
    try:
        while (fd := _try(path, os.O_RDONLY, fcntl.LOCK_SH)) is None:  # noqa: ASYNC110
            await asyncio.sleep(POLL)
    except FileNotFoundError:
        return None
    if not _still_at(path, fd):  # removed or replaced between the two
        os.close(fd)
        return None
    return fd


def _make(path: Path) -> None:
    path.touch(exist_ok=True)


def _still_at(path: Path, fd: int) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), there)


def _try(path: Path, flags: int, kind: int) -> int | None:
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd
