"""Telling whether what a build starts from is still the same, without reading all of it."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from prorl.api.errors import ConfigError
from prorl.sandbox.images.sif import find_squashfs


def of_file_content(path: Path) -> str:
    """SHA-256 of a file of ordinary size, such as a lock file. Raises :class:`ConfigError` when it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"cannot read the lock file {path}: {error.strerror}") from error


def of_image(path: Path) -> str:
    """A SIF by the id its build gave it, and its size; a folder by names, kinds, sizes and times of what lies in it."""
    if path.is_dir():
        return of_folder(path)
    found = find_squashfs(path)
    return hashlib.sha256(f"{found.id} {found.offset} {found.size}".encode()).hexdigest()


def of_folder(root: Path) -> str:
    digest = hashlib.sha256()
    for name, status in _walk(root):
        time = status.st_mtime_ns if stat.S_ISREG(status.st_mode) else 0
        size = status.st_size if stat.S_ISREG(status.st_mode) else 0
        digest.update(f"{name}\0{status.st_mode:o} {size} {time}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _walk(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    for directory, folders, files in os.walk(root):
        folders.sort()
        for name in sorted((*folders, *files)):
            path = os.path.join(directory, name)  # noqa: PTH118 - tens of thousands of them
            yield os.path.relpath(path, root), os.lstat(path)
