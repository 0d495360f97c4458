"""Folders as one stream of bytes: the plain part of the tar format, written and read on both ends.

Neither end trusts the other. The reader takes directories, regular files and links that cannot lead out, and refuses
all else: absolute paths, ``..``, devices, pipes, sockets, hard links, sparse files, extended headers. Whatever a header
says is checked before anything is allocated, and writing goes through descriptors that follow no link, so that a link
of somebody else's already there is refused as well. Owners, times and special mode bits do not travel.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

BLOCK = 512
CHUNK = 64 * 1024
MAX_PATH = 4096
MAX_ENTRIES = 200_000
DIRECTORY, FILE, LINK, LONG_NAME, LONG_LINK = b"5", b"0", b"2", b"L", b"K"
LONG = "././@LongLink"
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ArchiveError(Exception):
    """What was sent, or was to be sent, does not travel. The message names the member."""


# -- writing


def pack(root: str, max_bytes: int) -> Iterator[bytes]:
    """The archive of ``root``, a folder or a file (then the one member ``.``).

    Raises :class:`ArchiveError` and ``OSError``.
    """
    left = max_bytes
    for path, name in _walk(root):
        found = os.lstat(path)
        if stat.S_ISDIR(found.st_mode):
            yield from _header(name, DIRECTORY, found.st_mode, 0)
        elif stat.S_ISLNK(found.st_mode):
            target = os.readlink(path)  # noqa: PTH115
            check_link(name, target)
            yield from _header(name, LINK, 0o777, 0, target)
        elif stat.S_ISREG(found.st_mode):
            left -= found.st_size
            if left < 0:
                raise ArchiveError(f"more than {max_bytes} bytes")
            yield from _header(name, FILE, found.st_mode, found.st_size)
            yield from _content(path, found.st_size)
        else:
            raise ArchiveError(f"{name} is neither a file nor a folder nor a link")
    yield bytes(2 * BLOCK)


def _walk(root: str) -> Iterator[tuple[str, str]]:
    yield root, "."
    pending = [(root, "")] if stat.S_ISDIR(os.lstat(root).st_mode) else []
    while pending:
        folder, prefix = pending.pop()
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            yield entry.path, prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                pending.append((entry.path, f"{prefix}{entry.name}/"))


def _content(path: str, size: int) -> Iterator[bytes]:
    """Exactly ``size`` bytes, whatever happens to the file meanwhile."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        left = size
        while left:
            data = os.read(fd, min(left, CHUNK))
            if not data:
                raise ArchiveError(f"{path} became shorter while it was read")
            left -= len(data)
            yield data
    finally:
        os.close(fd)
    yield bytes(-size % BLOCK)


def _header(name: str, kind: bytes, mode: int, size: int, target: str = "") -> Iterator[bytes]:
    for text, long in ((name, LONG_NAME), (target, LONG_LINK)):
        encoded = os.fsencode(text)
        if len(encoded) > MAX_PATH:
            raise ArchiveError(f"{name[:200]}...: a path of more than {MAX_PATH} bytes")
        if len(encoded) > 100:
            yield _block(LONG, long, 0, len(encoded) + 1, "")
            yield encoded + bytes(1 + -(len(encoded) + 1) % BLOCK)
    yield _block(name, kind, stat.S_IMODE(mode) & 0o777, size, target)


def _block(name: str, kind: bytes, mode: int, size: int, target: str) -> bytes:
    if size >= 8**11:
        raise ArchiveError(f"{name} is too long")
    block = bytearray(BLOCK)
    block[0 : min(100, len(os.fsencode(name)))] = os.fsencode(name)[:100]
    block[100:108] = b"%07o\0" % mode
    block[108:124] = b"0000000\0" * 2
    block[124:136] = b"%011o\0" % size
    block[136:148] = b"00000000000\0"
    block[148:156] = b" " * 8
    block[156:157] = kind
    block[157 : 157 + min(100, len(os.fsencode(target)))] = os.fsencode(target)[:100]
    block[257:265] = b"ustar  \0"
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


# -- reading


def parts_of(name: str) -> list[str]:
    """The components of a member's path. Raises :class:`ArchiveError` for one that leads anywhere else."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise ArchiveError(f"{name!r} leads out of the folder")
    return parts


def check_link(name: str, target: str) -> None:
    """A link may climb only at its very beginning, and no higher than the root: then no chain of links leads out."""
    parts = target.split("/")
    climbs = len(parts)
    for index, part in enumerate(parts):
        if part not in ("..", "."):
            climbs = index
            break
    depth = len(parts_of(name)) - 1
    if target.startswith("/") or not target or "\0" in target:
        raise ArchiveError(f"{name!r} is a link out of the folder, to {target!r}")
    if ".." in parts[climbs:] or parts[:climbs].count("..") > depth:
        raise ArchiveError(f"{name!r} is a link that may lead out of the folder, to {target!r}")


class Unpacker:
    """Feed it the stream; it writes to ``root``. Holds one block, and at most one long name."""

    def __init__(self, root: str, max_bytes: int) -> None:
        self._root = root
        self._max = self._left = max_bytes
        self._entries = 0
        self._buffer = bytearray()
        self._content = 0  # bytes of the present member still to come
        self._padding = 0
        self._file = -1
        self._long: dict[bytes, str] = {}
        self._taking = b""
        self._text = b""
        self.ended = False

    def feed(self, data: bytes) -> None:
        """Raises :class:`ArchiveError` or ``OSError``; then nothing more of the stream is to be fed."""
        view = memoryview(data)
        while view and not self.ended:
            if self._content or self._padding:
                view = self._take(view)
                continue
            missing = BLOCK - len(self._buffer)
            self._buffer += view[:missing]
            view = view[missing:]
            if len(self._buffer) == BLOCK:
                block = bytes(self._buffer)
                self._buffer.clear()
                self._begin(block)

    def check_end(self) -> None:
        if not self.ended:
            raise ArchiveError("the archive ends in the middle")

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _take(self, view: memoryview) -> memoryview:
        if self._content:
            part = view[: self._content]
            self._content -= len(part)
            if self._taking:
                self._text += bytes(part)
            else:
                written = 0
                while written < len(part):
                    written += os.write(self._file, part[written:])
            if not self._content:
                self._finish()
            return view[len(part) :]
        skipped = min(len(view), self._padding)
        self._padding -= skipped
        return view[skipped:]

    def _finish(self) -> None:
        self.close()
        if self._taking:
            self._long[self._taking] = os.fsdecode(self._text.rstrip(b"\0"))
            self._taking = self._text = b""

    def _begin(self, block: bytes) -> None:
        if not any(block):
            if not self._entries:
                raise ArchiveError("nothing in the archive")
            self.ended = True
            return
        if _number(block[148:156]) != sum(block) - sum(block[148:156]) + 8 * ord(" "):
            raise ArchiveError("a header with the wrong checksum")
        kind, size = block[156:157], _number(block[124:136])
        self._entries += 1
        if self._entries > MAX_ENTRIES:
            raise ArchiveError(f"more than {MAX_ENTRIES} members")
        if kind in (LONG_NAME, LONG_LINK):
            if not 0 < size <= MAX_PATH + 1:
                raise ArchiveError(f"a path of {size} bytes")
            self._taking, self._text = kind, b""
        else:
            self._member(block, b"0" if kind == b"\0" else kind, size)
        self._content, self._padding = size, -size % BLOCK
        if size == 0:
            self._finish()

    def _member(self, block: bytes, kind: bytes, size: int) -> None:
        name = self._long.pop(LONG_NAME, None)
        if name is None:
            prefix = _text(block[345:500]) if block[257:263] == b"ustar\0" else ""
            name = f"{prefix}/{_text(block[:100])}" if prefix else _text(block[:100])
        target = self._long.pop(LONG_LINK, None) or _text(block[157:257])
        parts = parts_of(name)
        mode = _number(block[100:108]) & 0o777
        if kind == FILE:
            self._left -= size
            if self._left < 0:
                raise ArchiveError(f"more than {self._max} bytes")
            self._file = self._open(parts, mode)
        elif size:
            raise ArchiveError(f"{name!r}: a member of kind {kind!r} with content")
        elif kind == DIRECTORY:
            os.close(self._folder(parts))
        elif kind == LINK:
            check_link(name, target)
            self._link(parts, target)
        else:
            raise ArchiveError(f"{name!r} is neither a file nor a folder nor a link (kind {kind!r})")

    def _folder(self, parts: list[str]) -> int:
        """A descriptor of the folder, made as far as it is missing."""
        os.makedirs(self._root, exist_ok=True)  # noqa: PTH103
        fd = os.open(self._root, FOLDER)
        for part in parts:
            try:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=fd)
                following = os.open(part, FOLDER, dir_fd=fd)
            finally:
                os.close(fd)
            fd = following
        return fd

    def _open(self, parts: list[str], mode: int) -> int:
        if not parts:  # the one file that is the whole archive
            os.makedirs(os.path.dirname(self._root) or ".", exist_ok=True)  # noqa: PTH103, PTH120
            fd = os.open(self._root, NEW_FILE, 0o600)
        else:
            folder = self._folder(parts[:-1])
            try:
                fd = os.open(parts[-1], NEW_FILE, 0o600, dir_fd=folder)
            finally:
                os.close(folder)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise ArchiveError(f"{'/'.join(parts) or self._root} is there and is not a regular file")
        os.fchmod(fd, mode | 0o600)
        return fd

    def _link(self, parts: list[str], target: str) -> None:
        if not parts:
            raise ArchiveError("the archive itself is a link")
        folder = self._folder(parts[:-1])
        try:
            try:
                os.symlink(target, parts[-1], dir_fd=folder)
            except FileExistsError:
                if not stat.S_ISLNK(os.lstat(parts[-1], dir_fd=folder).st_mode):
                    raise ArchiveError(f"{'/'.join(parts)} is there already, and is no link") from None
                os.unlink(parts[-1], dir_fd=folder)
                os.symlink(target, parts[-1], dir_fd=folder)
        finally:
            os.close(folder)


def _number(field: bytes) -> int:
    """Octal, and nothing else: what needs more digits is over every cap."""
    digits = field.strip(b" \0")
    if not all(48 <= digit < 56 for digit in digits):
        raise ArchiveError("a header that makes no sense")
    return int(digits, 8) if digits else 0


def _text(field: bytes) -> str:
    return os.fsdecode(field.split(b"\0", 1)[0])
