"""Reading and writing files, whole, as the agent's own user.

``root`` is set where the runtime does not confine the file system itself: paths that lead out of it are refused.
"""

from __future__ import annotations

import binascii
import os
import re
import stat

from .action import Action, BadArgumentsError, argument

BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}\Z")
MAX_FILE = 700_000  # its base64 fits a frame


class Files:
    def __init__(self, workdir: str, root: str | None) -> None:
        self._workdir = workdir
        self._root = os.path.realpath(root) if root else None

    def read(self, action: Action) -> None:
        path = self.resolve(argument(action.arguments, "path", str))
        limit = min(argument(action.arguments, "limit", int, MAX_FILE), MAX_FILE)
        data, size = self.load(path, limit)
        encoded = binascii.b2a_base64(data, newline=False).decode("ascii")
        action.finish("ok", {"data": encoded, "size": size, "truncated": size > len(data)})

    def write(self, action: Action) -> None:
        path = self.resolve(argument(action.arguments, "path", str))
        data = decode(argument(action.arguments, "data", str))
        self.store(path, data)
        action.finish("ok", {"path": path, "size": len(data)})

    def load(self, path: str, limit: int) -> tuple[bytes, int]:
        """At most ``limit`` bytes of a regular file, and its size. Raises ``OSError``, :class:`BadArgumentsError`."""
        # Not blocking: opening a FIFO would wait for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            size = _size(fd, path)
            data = b""
            while len(data) < limit and (chunk := os.read(fd, limit - len(data))):
                data += chunk
        finally:
            os.close(fd)
        return data, size

    def store(self, path: str, data: bytes) -> None:
        """Write a regular file, its folders too where they are missing."""
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(path, flags, 0o644)
        try:
            _size(fd, path)
            written = 0
            while written < len(data):
                written += os.write(fd, data[written:])
        finally:
            os.close(fd)

    def resolve(self, path: str) -> str:
        """The real path, seen from the working directory. Raises :class:`BadArgumentsError`."""
        if not path or "\0" in path:
            raise BadArgumentsError("'path' must be the path of a file")
        real = os.path.realpath(os.path.join(self._workdir, path))  # noqa: PTH118
        if self._root and os.path.commonpath((self._root, real)) != self._root:
            raise BadArgumentsError(f"{path} lies outside of the sandbox")
        return real


def decode(text: str) -> bytes:
    """Strict base64; the module of that name is not worth its import here."""
    if BASE64.match(text):
        try:
            return binascii.a2b_base64(text)
        except binascii.Error as error:
            raise BadArgumentsError(f"'data' is not base64: {error}") from None
    raise BadArgumentsError("'data' is not base64: it has a character that is none of base64's")


def _size(fd: int, path: str) -> int:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise BadArgumentsError(f"{path} is not a regular file")
    return found.st_size
