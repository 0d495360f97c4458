"""Looking into a root file system that is not ours, as a process inside it would: its links end inside it.

Nothing of it is run, and no link of it is followed by the kernel, which would follow it on the host.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath

MAX_LINKS = 40


class InRoot:
    """``root`` is a directory of the host; paths are those inside."""

    def __init__(self, root: str) -> None:
        self._root = root

    def resolve(self, path: str) -> str | None:
        """The path with all links followed; ``None`` when nothing is there."""
        pending = list(reversed(PurePosixPath("/", path).parts[1:]))
        done: list[str] = []
        links = 0
        while pending:
            name = pending.pop()
            if name == "..":
                done = done[:-1]
                continue
            status = self._lstat([*done, name])
            if status is None:
                return None
            if not stat.S_ISLNK(status.st_mode):
                done.append(name)
                continue
            links += 1
            target = self._readlink([*done, name])
            if links > MAX_LINKS or target is None:
                return None
            if target.startswith("/"):
                done = []
            pending += reversed([part for part in PurePosixPath(target).parts if part != "/"])
        return "/" + "/".join(done)

    def is_program(self, path: str) -> bool:
        status = self._lstat(list(PurePosixPath(path).parts[1:]))
        return status is not None and stat.S_ISREG(status.st_mode) and bool(status.st_mode & 0o111)

    def read(self, path: str, limit: int = 1 << 20) -> str | None:
        """Text of a regular file no longer than ``limit`` bytes."""
        found = self.resolve(path)
        if found is None:
            return None
        parts = PurePosixPath(found).parts[1:]
        try:
            with self._directory(parts[:-1]) as directory:
                fd = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        except (OSError, IndexError):
            return None
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            os.close(fd)
            return None
        with os.fdopen(fd, "rb") as file:
            return file.read(limit).decode("utf-8", "replace")

    def link_on_the_way(self, path: str) -> str | None:
        """The first part of ``path`` that is a link, if any is."""
        parts = list(PurePosixPath(path).parts[1:])
        for end in range(1, len(parts) + 1):
            status = self._lstat(parts[:end])
            if status is None:
                return None
            if stat.S_ISLNK(status.st_mode):
                return "/" + "/".join(parts[:end])
        return None

    def _lstat(self, parts: list[str]) -> os.stat_result | None:
        if not parts:
            return os.stat(self._root)  # noqa: PTH116
        try:
            with self._directory(parts[:-1]) as directory:
                return os.stat(parts[-1], dir_fd=directory, follow_symlinks=False)
        except OSError:
            return None

    def _readlink(self, parts: list[str]) -> str | None:
        try:
            with self._directory(parts[:-1]) as directory:
                return os.readlink(parts[-1], dir_fd=directory)
        except OSError:
            return None

    @contextmanager
    def _directory(self, parts: list[str] | tuple[str, ...]) -> Iterator[int]:
        fd = os.open(self._root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in parts:
                inner = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
                os.close(fd)
                fd = inner
            yield fd
        finally:
            os.close(fd)
