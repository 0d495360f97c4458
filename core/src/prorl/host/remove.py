"""Removing directory trees that do not want to go."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path


def remove_tree(path: Path) -> None:
    """Remove a file or a directory tree, read-only directories and files of our subordinate uids included.

    Links are not followed. What cannot be removed stays: whoever needs the name next will say so.
    """
    if not os.path.lexists(path):
        return
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    path.chmod(0o700)
    for directory, names, _ in os.walk(path):
        for name in names:
            inner = Path(directory, name)
            if not inner.is_symlink():
                _open_up(inner)
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        # A build with fakeroot leaves files of subordinate uids: only in such a namespace are they ours to remove.
        inside = ["unshare", "--user", "--map-root-user", "--map-auto", "rm", "-rf", "--", str(path)]
        subprocess.run(inside, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=600)


def _open_up(directory: Path) -> None:
    try:
        directory.chmod(0o700)
    except OSError:
        return
