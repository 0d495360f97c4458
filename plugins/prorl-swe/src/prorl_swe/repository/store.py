"""Folders that take long to make: each made once at a time, whole or not there, none removed while somebody uses it.

::

    KIND/KEY/             what was made, with about.json in it
    KIND/KEY.lock         a shared flock on it means that KEY is in use
    KIND/KEY.NONCE.part   being made, by whoever holds the lock in locks/; a leftover when nobody does
    locks/KIND-KEY        one file for each that was ever asked for

Locks are the kernel's, so all of this holds between processes, and ends with the last process that took part.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Literal, Self

import msgspec

from prorl.api.errors import SandboxFault
from prorl.host import locks
from prorl.host.oldest import remove_oldest
from prorl.host.remove import remove_tree

Kind = Literal["base", "env"]
KINDS: tuple[Kind, ...] = ("base", "env")
ABOUT = "about.json"
# Makes it in the folder given, which exists, and says in a few words what it is. The descriptor is to be inherited by
# whatever it starts: until all of that has ended nobody else makes the same.
Make = Callable[[Path, int], Awaitable[str]]


class About(msgspec.Struct, frozen=True, kw_only=True):
    """``made``: seconds since 1970; ``seconds``: how long it took; ``size`` in bytes on the disk."""

    what: str
    size: int
    made: float
    seconds: float


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """One thing in the store. ``used`` is when it was last taken (since 1970)."""

    kind: Kind
    key: str
    what: str
    path: str
    size: int
    used: float
    seconds: float
    in_use: bool


class Held:
    """Something in use: it will not be removed. ``close`` is idempotent."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock: int | None = lock

    def close(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Store:
    """``max_bytes``: after something was made, what was used longest ago goes until the rest fits."""

    def __init__(self, folder: Path, *, max_bytes: int | None = None) -> None:
        self.folder = folder
        self._max_bytes = max_bytes
        self._making: dict[tuple[Kind, str], _Making] = {}

    async def take(self, kind: Kind, key: str, make: Make) -> Held:
        """Make it unless it is there, and hold it. Whoever asks meanwhile waits for the same, and shares its failure.

        Raises what ``make`` raises, and :class:`SandboxFault` where nothing can be kept.
        """
        while True:
            held = await self._hold(kind, key)
            if held is not None:
                return held
            making = self._making.get((kind, key))
            if making is None:
                making = self._making[kind, key] = _Making(asyncio.create_task(self._make(kind, key, make)))
                making.task.add_done_callback(lambda _: self._making.pop((kind, key), None))
            await making.wait()

    async def close(self) -> None:
        """End what is being made."""
        tasks = [making.task for making in self._making.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def list(self) -> tuple[Stored, ...]:
        """Everything kept here, what was used last first."""
        return tuple(sorted(self._stored(), key=lambda stored: -stored.used))

    def prune(self, *, max_bytes: int | None = None, max_age: float | None = None) -> tuple[Stored, ...]:
        """Remove what was not used for ``max_age`` seconds, and then, least recently used first, until the rest fits
        into ``max_bytes``. Nothing that is in use is removed. Returns what was.
        """
        removed = remove_oldest(
            self.list(), lambda stored: self._remove(stored.kind, stored.key), max_bytes=max_bytes, max_age=max_age
        )
        for kind in KINDS:
            for part in self._of(kind).glob("*.part"):
                self._clear_if_left(kind, part.name.split(".", 1)[0])
        return removed

    def _of(self, kind: Kind) -> Path:
        return self.folder / kind

    def _lock_file(self, kind: Kind, key: str) -> Path:
        return self._of(kind) / f"{key}.lock"

    async def _hold(self, kind: Kind, key: str) -> Held | None:
        lock_file = self._lock_file(kind, key)
        try:
            lock = await locks.shared(lock_file)
        except OSError as error:
            raise self._fault(error) from error
        if lock is None:
            return None
        path = self._of(kind) / key
        if not (path / ABOUT).is_file():
            os.close(lock)
            return None
        os.utime(lock_file)
        return Held(path, lock)

    async def _make(self, kind: Kind, key: str, make: Make) -> None:
        path, lock_file = self._of(kind) / key, self._lock_file(kind, key)
        self._make_folders(kind)
        building = await locks.exclusive(self._building(kind, key))
        try:
            if (path / ABOUT).is_file() and lock_file.exists():
                return
            await asyncio.to_thread(self._clear, kind, key)
            part = self._part(kind, key)
            part.mkdir()
            began = time.time()
            try:
                what = await make(part, building)
                await asyncio.to_thread(_finish, part, what, began)
                if path.exists():  # its lock was lost, so nobody can hold it
                    path.rename(self._part(kind, key))
                part.rename(path)
                lock_file.touch()
            finally:
                await asyncio.shield(asyncio.to_thread(self._clear, kind, key))
        except OSError as error:
            raise SandboxFault(
                f"repositories cannot be kept in {self.folder}: {error}", code="repository_cache"
            ) from error
        finally:
            os.close(building)
        if self._max_bytes is not None:
            # What was just made is used next: it must not be the one to go, however large.
            with await self._hold(kind, key) or Held(path, os.open(os.devnull, os.O_RDONLY)):
                await asyncio.to_thread(self.prune, max_bytes=self._max_bytes)

    def _make_folders(self, kind: Kind) -> None:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self._of(kind), self.folder / "locks"):
                folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise self._fault(error) from error

    def _fault(self, error: OSError) -> SandboxFault:
        what = f"repositories cannot be kept in the cache {self.folder} ([swe] cache): {error}"
        return SandboxFault(what, code="repository_cache")

    def _building(self, kind: Kind, key: str) -> Path:
        return self.folder / "locks" / f"{kind}-{key}"

    def _part(self, kind: Kind, key: str) -> Path:
        """A name of one's own. The lock for making must be held."""
        return self._of(kind) / f"{key}.{secrets.token_hex(4)}.part"

    def _clear(self, kind: Kind, key: str) -> None:
        for part in self._of(kind).glob(f"{key}.*.part"):
            remove_tree(part)

    def _clear_if_left(self, kind: Kind, key: str) -> None:
        self._building(kind, key).touch()
        fd = locks.try_exclusive(self._building(kind, key))
        if fd is not None:
            self._clear(kind, key)
            os.close(fd)

    def _stored(self) -> Iterator[Stored]:
        for kind in KINDS:
            for lock_file in self._of(kind).glob("*.lock"):
                path = lock_file.with_suffix("")
                try:
                    about = msgspec.json.decode((path / ABOUT).read_bytes(), type=About)
                    used = lock_file.stat().st_mtime
                    fd = locks.try_exclusive(lock_file)
                except (OSError, msgspec.MsgspecError):  # just being made or removed
                    continue
                if fd is not None:
                    os.close(fd)
                yield Stored(
                    kind=kind,
                    key=path.name,
                    what=about.what,
                    path=str(path),
                    size=about.size,
                    used=used,
                    seconds=about.seconds,
                    in_use=fd is None,
                )

    def _remove(self, kind: Kind, key: str) -> bool:
        """False when it is in use."""
        path, lock_file = self._of(kind) / key, self._lock_file(kind, key)
        try:
            fd = locks.try_exclusive(lock_file)
        except OSError:  # gone
            return False
        if fd is None:
            return False
        try:
            # In one step: a half that is left by a crash is not taken for the whole.
            going = self._part(kind, key)
            path.rename(going)
            lock_file.unlink(missing_ok=True)
        except OSError:
            return False
        finally:
            os.close(fd)
        remove_tree(going)
        return True


class _Making:
    """A task that several wait for; it is cancelled when none of them does any more."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task
        self._waiting = 0

    async def wait(self) -> None:
        self._waiting += 1
        try:
            await asyncio.shield(self.task)
        finally:
            self._waiting -= 1
            if self._waiting == 0 and not self.task.done():
                self.task.cancel()
                await asyncio.wait([self.task])


def _finish(part: Path, what: str, began: float) -> None:
    size = sum(
        os.lstat(os.path.join(directory, name)).st_blocks * 512  # noqa: PTH118 - tens of thousands of them
        for directory, folders, names in os.walk(part)
        for name in (*folders, *names)
    )
    about = About(what=what, size=size, made=began, seconds=time.time() - began)
    (part / ABOUT).write_bytes(msgspec.json.encode(about))
    os.sync()  # a power cut must not leave a folder with empty files in it
