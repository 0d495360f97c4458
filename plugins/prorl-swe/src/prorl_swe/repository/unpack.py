"""A source distribution's files, in a folder: nothing outside it, no device, no git directory of the author's."""

from __future__ import annotations

import os
import shutil
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
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, KeyError, ValueError, OSError) as error:
        raise TaskFault(f"{filename} cannot be unpacked: {error}", code="sdist_unpack") from error


def _untar(archive: Path, target: Path) -> None:
    """By hand, for not every Python 3.11 has tarfile's own filter. Links come last: nothing is written through one."""
    links: list[tuple[Path, str]] = []
    with tarfile.open(archive) as tar:
        for member in _wanted(tar):
            path = _inside(target, member.name)
            path.parent.mkdir(parents=True, exist_ok=True)
            if member.isdir():
                path.mkdir(exist_ok=True)
            elif member.issym():
                _inside(target, str(PurePosixPath(member.name).parent), member.linkname)
                links.append((path, member.linkname))
            else:  # a hard link is what it leads to
                content = tar.extractfile(member)
                if content is None:
                    raise ValueError(f"{member.name} leads to nothing")
                with content, path.open("wb") as file:
                    shutil.copyfileobj(content, file)
                path.chmod(0o755 if member.mode & stat.S_IXUSR else 0o644)
    for path, leads_to in links:
        path.symlink_to(leads_to)


def _inside(target: Path, *names: str) -> Path:
    """Where a name of the archive is. Raises ``ValueError`` if that is not below ``target``."""
    if any("\0" in name or PurePosixPath(name).is_absolute() for name in names):
        raise ValueError(f"{names[-1]!r} is not a relative path")
    path = Path(os.path.normpath(target.joinpath(*names)))
    if not path.is_relative_to(target):
        raise ValueError(f"{names[-1]!r} leads out of the archive")
    return path


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
