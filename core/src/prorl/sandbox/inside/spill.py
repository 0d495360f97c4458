"""The full text of an output that was cut, in a file beside the agent's own.

The files lie in a private folder of the sandbox's temporary directory: they go with the sandbox, count against its
limits, and the oldest makes room for the next.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterable

MAX_FILES = 8
MAX_BYTES = 32 << 20  # of one file; what is beyond is not kept


class SpillFile:
    """Takes bytes until it is full, or the disk is; ``path`` names it, ``complete`` says whether all went in."""

    def __init__(self, path: str) -> None:
        # A new file or none: a link that the agent put in its place is not followed.
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self.path = path
        self.complete = True
        self._size = 0

    def write(self, data: bytes) -> None:
        if not self.complete:
            return
        fits = data[: MAX_BYTES - self._size]
        self.complete = len(fits) == len(data)
        while fits:
            try:
                written = os.write(self._fd, fits)
            except OSError:  # no space left, or over the limit on files: the action itself is none the worse
                self.complete = False
                return
            self._size += written
            fits = fits[written:]

    def close(self) -> None:
        os.close(self._fd)


class Spill:
    """Hands out the files. The folder is made when the first one is needed."""

    def __init__(self, parent: str) -> None:
        self._parent = parent
        self._folder = ""
        self._paths: deque[str] = deque()
        self._count = 0

    def open(self, begin: Iterable[bytes]) -> SpillFile | None:
        """A file that begins with ``begin``; ``None`` where none can be had."""
        self._count += 1
        try:
            if not self._folder:
                folder = os.path.join(self._parent, f"output-{os.urandom(4).hex()}")  # noqa: PTH118
                os.mkdir(folder, 0o700)  # noqa: PTH102
                self._folder = folder
            file = SpillFile(os.path.join(self._folder, f"{self._count:04}.txt"))  # noqa: PTH118
        except OSError:
            return None
        self._paths.append(file.path)
        if len(self._paths) > MAX_FILES:
            with contextlib.suppress(OSError):
                os.unlink(self._paths.popleft())  # noqa: PTH108
        for data in begin:
            file.write(data)
        return file
