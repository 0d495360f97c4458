"""Loopback addresses, one per sandbox: 127.0.1.0 to 127.255.255.254, unique on the machine.

A lease is a flock on a file named after the address. The lock belongs to the open file, so it holds for as long as any
process has it open, the sandbox's outermost process included: the kernel takes it back when the last of them ends,
however that happens. Files of the dead are only litter, and are taken over or swept away.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import time
from ipaddress import IPv4Address
from pathlib import Path

from prorl.api.errors import SandboxFault

FIRST = int(IPv4Address("127.0.1.0"))
LAST = int(IPv4Address("127.255.255.254"))  # connecting to 127.255.255.255, the broadcast address, fails
TRIES = 1000
DYING_WITHIN = 2.0
OTHERS = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.EISDIR)  # another user's file, or what is no lease at all


class Lease:
    """An address that is ours. ``fd`` may be inherited by whoever shall hold it too."""

    def __init__(self, address: str, path: Path, fd: int) -> None:
        self.address = address
        self.fd = fd
        self._path = path

    def release(self) -> None:
        """Give the address back, whoever else still holds the lock. Idempotent."""
        if self.fd >= 0:
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(self.fd)
            self.fd = -1


def take(folder: Path) -> Lease:
    """Lease an address. ``folder`` is shared by everyone on the machine and is made if need be.

    Raises :class:`SandboxFault` when none can be had.
    """
    _make(folder)
    for _ in range(TRIES):
        address = str(IPv4Address(FIRST + secrets.randbelow(LAST - FIRST + 1)))
        lease = _try(folder / address, address)
        if lease:
            return lease
    message = f"no loopback address is free after {TRIES} tries: may this user make files in {folder} (mode 1777)?"
    raise SandboxFault(message, code="no_address")


def reclaim(folder: Path, address: str) -> bool:
    """Remove the file of an address whose holder is dying: its last threads have the lock for a moment longer."""
    deadline = time.monotonic() + DYING_WITHIN
    try:
        path = folder / str(IPv4Address(address))
    except ValueError:
        return False
    while path.exists():
        lease = _try(path, address)
        if lease:
            lease.release()
            return True
        if time.monotonic() > deadline:
            break
        time.sleep(0.005)
    return False


def sweep(folder: Path) -> int:
    """Remove the files of leases that nobody holds; returns how many."""
    removed = 0
    with contextlib.suppress(FileNotFoundError):
        for path in list(folder.iterdir()):
            lease = _try(path, path.name)
            if lease:
                lease.release()
                removed += 1
    return removed


def _make(folder: Path) -> None:
    if not folder.is_dir():
        with contextlib.suppress(OSError):  # another one made it, or the next step says why it can't be used
            folder.mkdir(parents=True)
            folder.chmod(0o1777)  # every user of the machine leases here; nobody removes another's file


def _try(path: Path, address: str) -> Lease | None:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if error.errno in OTHERS:
            return None
        raise SandboxFault(f"cannot lease an address in {path.parent}: {error.strerror}", code="no_address") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _same(fd, path):
            return Lease(address, path, fd)
    except BlockingIOError:
        pass
    os.close(fd)
    return None


def _same(fd: int, path: Path) -> bool:
    """Whether the file was not removed, by the one who had it before us, between our opening and our locking it."""
    try:
        now = path.lstat()
    except FileNotFoundError:
        return False
    here = os.fstat(fd)
    return (here.st_dev, here.st_ino) == (now.st_dev, now.st_ino)
