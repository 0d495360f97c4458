"""A source distribution's files, in a folder: nothing outside it, no device, no git directory of the author's."""

from __future__ import annotations

import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from prorl.api.errors import TaskFault

MAX_FILES = 200_000
MAX_BYTES = 4 << 30
# What git would read as its own: a nested repository's content would not be committed, and its settings could be run.
GIT = (".git", "git~1")


def unpack(archive: Path, filename: str, target: Path) -> None:
    """The content of the archive's one top-level folder. Blocks. Raises :class:`TaskFault` for a bad archive."""
    target.mkdir()
    try:
        if filename.endswith(".zip"):
            _unzip(archive, target)
        else:
            _untar(archive, target)
        _raise_the_only_folder(target)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError, OSError) as error:
        raise TaskFault(f"{filename} cannot be unpacked: {error}", code="sdist_unpack") from error


def _untar(archive: Path, target: Path) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(target, members=_wanted(tar), filter="data", numeric_owner=True)


def _wanted(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    size = 0
    for count, member in enumerate(tar):
        size += member.size
        _check(count, size)
        if not _is_git(member.name) and (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            yield member


def _unzip(archive: Path, target: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        size = 0
        for count, member in enumerate(file.infolist()):
            size += member.file_size
            _check(count, size)
            if _is_git(member.filename):
                continue
            written = Path(file.extract(member, target))
            if not member.is_dir():
                written.chmod(0o755 if member.external_attr >> 16 & stat.S_IXUSR else 0o644)


def _check(count: int, size: int) -> None:
    if count >= MAX_FILES or size > MAX_BYTES:
        raise ValueError(f"more than {MAX_FILES} files or {MAX_BYTES} bytes")


def _is_git(name: str) -> bool:
    return any(part.lower() in GIT for part in PurePosixPath(name).parts)


def _raise_the_only_folder(target: Path) -> None:
    found = list(target.iterdir())
    if len(found) != 1 or found[0].is_symlink() or not found[0].is_dir():
        raise ValueError("it has not exactly one folder at its top")
    only = found[0].rename(target.with_name(f"{target.name}.only"))
    target.rmdir()
    only.rename(target)
