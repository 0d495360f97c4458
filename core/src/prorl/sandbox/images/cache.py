"""The folder of built images: whole ones only, each built once at a time, none removed while in use.

::

    NAME-KEY.sif          an image; a shared flock on it means it is in use
    NAME-KEY.json         how it was built (Built)
    NAME-KEY.log          what the last build that failed printed
    NAME-KEY.NONCE.part   being built, by whoever holds the lock; a leftover when nobody does
    roots-UID/DIGEST/     an unpacked image (roots.py), with DIGEST.lock beside it that is locked as a SIF is
    locks/                one file for each key that was ever asked for
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec

from prorl.api.errors import SandboxFault
from prorl.host import locks
from prorl.host.oldest import remove_oldest
from prorl.host.remove import remove_tree
from prorl.sandbox.images.recipe import CacheMode


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """How an image was made. ``began`` is in seconds since 1970, by the clock of the node that built it."""

    source: str
    mode: CacheMode
    digest: str
    began: float
    seconds: float
    framework: str
    base: str | None


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """One thing in the cache. ``size`` in bytes; ``used`` is when a sandbox last started from it (since 1970)."""

    name: str
    path: str
    size: int
    used: float
    in_use: bool
    built: Built | None


class ImageCache:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.roots = folder / f"roots-{os.geteuid()}"
        self._locks = folder / "locks"

    def path(self, entry: str) -> Path:
        return self.folder / f"{entry}.sif"

    def root(self, digest: str) -> Path:
        return self.roots / digest

    def log(self, entry: str) -> Path:
        return self.folder / f"{entry}.log"

    def part(self, entry: str) -> Path:
        """A name of one's own to build under. The lock of ``entry`` must be held."""
        return self.folder / f"{entry}.{secrets.token_hex(4)}.part"

    def make(self) -> None:
        """Raises :class:`SandboxFault` when there cannot be a cache here."""
        try:
            for folder in (self.folder, self._locks):
                folder.mkdir(parents=True, exist_ok=True)
            # Nobody else may reach a setuid program of some image there.
            self.roots.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            what = f"images cannot be kept in {self.folder}: {error.strerror}; set [sandbox.images] folder"
            raise SandboxFault(what, code="image_cache") from error

    @contextlib.asynccontextmanager
    async def lock(self, entry: str) -> AsyncIterator[int]:
        """Alone with ``entry``, what dead builders left of it removed. Yields the descriptor that holds the lock."""
        self.make()
        fd = await locks.exclusive(self._locks / entry)
        try:
            await asyncio.to_thread(self._clear, entry)
            yield fd
        finally:
            os.close(fd)

    def find(self, entry: str) -> Built | None:
        """``None`` when there is no whole image of that name."""
        try:
            built = msgspec.json.decode((self.folder / f"{entry}.json").read_bytes(), type=Built)
        except (OSError, msgspec.MsgspecError):
            return None
        return built if self.path(entry).is_file() else None

    def commit(self, entry: str, part: Path, built: Built) -> Path:
        """Make a finished build the image. It is there as a whole or not at all, after a power cut too."""
        about = self.part(entry)
        about.write_bytes(msgspec.json.format(msgspec.json.encode(built), indent=2))
        for path in (part, about):
            _sync(path)
        about.replace(self.folder / f"{entry}.json")
        part.chmod(0o644)
        part.replace(self.path(entry))
        _sync(self.folder)
        self.log(entry).unlink(missing_ok=True)
        return self.path(entry)

    def list(self) -> tuple[Stored, ...]:
        """Everything kept here, what was used last first."""
        return tuple(sorted(self._stored(), key=lambda stored: -stored.used))

    def prune(self, *, max_bytes: int | None = None, max_age: float | None = None) -> tuple[Stored, ...]:
        """Remove what was not used for ``max_age`` seconds, and then, least recently used first, until the rest fits
        into ``max_bytes``. Nothing that is in use is removed. Returns what was.
        """
        removed = remove_oldest(
            self.list(), lambda stored: self._remove(Path(stored.path)), max_bytes=max_bytes, max_age=max_age
        )
        self._clear_all()
        return removed

    def _stored(self) -> Iterator[Stored]:
        for path in (*self.folder.glob("*.sif"), *self.roots.glob("*.lock")):
            root = path.with_suffix("")
            kept = root if path.suffix == ".lock" else path
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                yield Stored(
                    name=path.stem,
                    path=str(kept),
                    size=_size(kept),
                    used=max(status.st_atime, status.st_mtime),
                    in_use=_is_locked(path),
                    built=self.find(path.stem) if kept == path else None,
                )

    def _remove(self, path: Path) -> bool:
        """False when it is in use."""
        lock = path if path.suffix == ".sif" else path.with_name(f"{path.name}.lock")
        try:
            fd = locks.try_exclusive(lock)
        except OSError:  # gone, or somebody else's to remove
            return False
        if fd is None:
            return False
        try:
            if path == lock:
                path.with_suffix(".json").unlink(missing_ok=True)
            else:
                remove_tree(path)
            lock.unlink(missing_ok=True)
        finally:
            os.close(fd)
        return True

    def _clear(self, entry: str) -> None:
        for part in self.folder.glob(f"{entry}.*.part"):
            remove_tree(part)

    def _clear_all(self) -> None:
        for part in self.folder.glob("*.part"):
            entry = part.name.split(".", 1)[0]
            (self._locks / entry).touch(exist_ok=True)
            fd = locks.try_exclusive(self._locks / entry)
            if fd is not None:
                self._clear(entry)
                os.close(fd)


def touch(path: Path) -> None:
    """Note that it is being used; mtime stays what it was."""
    with contextlib.suppress(OSError):  # somebody else's cache may be read-only for us
        os.utime(path, (time.time(), path.stat().st_mtime))


def _is_locked(path: Path) -> bool:
    try:
        fd = locks.try_exclusive(path)
    except OSError:
        return True
    if fd is None:
        return True
    os.close(fd)
    return False


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(
            Path(directory, name).lstat().st_blocks * 512 for directory, _, names in os.walk(path) for name in names
        )
    return path.stat().st_blocks * 512


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
