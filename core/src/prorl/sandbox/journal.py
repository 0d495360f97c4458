"""What a server has started and not yet ended, on disk: after a SIGKILL the next start of a server ends the rest.

One append-only file of JSON lines per runtime of a server, below ``<state>/<host name>/``, locked (flock) while the
server lives. A line is a :class:`Begun` or an :class:`Ended`; one that was cut short, by a crash or a full disk, is
left out. A sandbox is on record before a process of it is started, and again when its processes are known.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from prorl.sandbox.sessions import Witness

SUFFIX = ".jsonl"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Begun(msgspec.Struct, frozen=True, kw_only=True, tag="begun"):
    """``session`` is 0 until it is known; ``boot`` tells pids of this boot of the machine from earlier ones."""

    id: str
    boot: str
    folder: str | None = None
    address: str | None = None
    session: int = 0
    witnesses: tuple[Witness, ...] = ()


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    id: str


def boot_id() -> str:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def state_folder(configured: str | None) -> Path:
    """Where journals live: the setting, else ``$XDG_STATE_HOME/prorl``, else ``~/.local/state/prorl``.

    Below it a folder per host, because a home directory may be shared by a whole cluster.
    """
    if configured is not None:
        base = Path(configured).absolute()
    else:
        home = os.environ.get("XDG_STATE_HOME")
        base = Path(home) / "prorl" if home and Path(home).is_absolute() else Path.home() / ".local/state/prorl"
    return base / "sandboxes" / (socket.gethostname() or "localhost")


class Journal:
    """The file is made with the first entry. ``runtime`` is the name that a later sweep looks for."""

    def __init__(self, folder: Path, runtime: str) -> None:
        self._folder = folder
        self._runtime = runtime
        self._path: Path | None = None
        self._fd = -1
        self._open: set[str] = set()

    def begin(self, entry: Begun) -> None:
        """Raises :class:`OSError` when it cannot be written: what isn't on record must not be started."""
        self._write(entry)
        self._open.add(entry.id)

    def end(self, id: str) -> None:
        """Forget it; with the last one the file goes too."""
        self._open.discard(id)
        if not self._open:
            self.close()
        elif self._fd >= 0:
            with contextlib.suppress(OSError):  # a full disk: a sweep will find nothing left of it
                self._write(Ended(id))

    def close(self) -> None:
        if self._fd >= 0 and self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(self._fd)
            self._fd = -1

    def _write(self, line: Begun | Ended) -> None:
        if self._fd < 0:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._path = self._folder / f"{self._runtime}-{os.getpid()}-{secrets.token_hex(4)}{SUFFIX}"
            # Locked before it has its name, so that no sweep finds it without an owner.
            unnamed = self._path.with_suffix(".new")
            fd = os.open(unnamed, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unnamed.rename(self._path)
            self._fd = fd
        data = msgspec.json.encode(line) + b"\n"
        written = os.write(self._fd, data)
        if written != len(data):
            raise OSError(f"cannot write the journal {self._path}: the disk is full")


def sweep(folder: Path, runtime: str, end: Callable[[Begun], int]) -> int:
    """Call ``end`` for everything that servers which are no more have left of ``runtime``; returns the sum of what it
    returns. A journal goes when ``end`` has returned for all of it.
    """
    ended = 0
    for path in folder.glob(f"{runtime}-*{SUFFIX}"):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue  # gone meanwhile, or not ours
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for entry in unfinished(path.read_bytes()):
                ended += end(entry)
            path.unlink(missing_ok=True)
        except BlockingIOError:
            continue  # its server lives
        finally:
            os.close(fd)
    return ended


def unfinished(content: bytes) -> Iterator[Begun]:
    """The last word on everything that was begun and not ended."""
    open_: dict[str, Begun] = {}
    for line in content.split(b"\n"):
        try:
            entry = msgspec.json.decode(line, type=Begun | Ended)
        except msgspec.MsgspecError:
            continue
        if isinstance(entry, Begun):
            open_[entry.id] = entry
        else:
            open_.pop(entry.id, None)
    yield from open_.values()
