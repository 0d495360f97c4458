"""A base: a working tree at one commit, that commit and its ancestors in its .git, and nothing else there.

::

    tree/       the working tree, with .git
    project/    what an installation would have left of the project: where to import it from, its metadata
    base.json   Base
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from prorl.api.errors import TaskFault
from prorl.host.remove import remove_tree
from prorl_swe.repository.git import WHEN, Git, GitError

TREE = "tree"
PROJECT = "project"
BASE = "base.json"
# All else of a git directory is its past, or somebody's setting.
KEPT = ("HEAD", "config", "index", "objects", "refs", "packed-refs", "info", "shallow")


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """``commit`` is the base's full id; ``requirements`` and ``optional`` are what its tests need, as far as its own
    metadata says it; ``python`` is an image's interpreter.
    """

    commit: str
    requirements: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    python: str = ""


def read(folder: Path) -> Base:
    return msgspec.json.decode((folder / BASE).read_bytes(), type=Base)


def write(folder: Path, base: Base) -> None:
    (folder / BASE).write_bytes(msgspec.json.encode(base))


async def init(git: Git) -> None:
    await git("init", "-q", "--template=", ".")


async def apply_patch(git: Git, tree: Path, patch: str) -> None:
    """Raises :class:`TaskFault` when it does not apply."""
    file = tree.parent / "base.patch"
    file.write_bytes(patch.encode("utf-8", "surrogateescape"))
    try:
        await git("apply", "--whitespace=nowarn", str(file))
    except GitError as error:
        raise TaskFault(f"the row's base patch does not apply: {error}", code="base_patch") from error
    finally:
        file.unlink()


async def commit_all(git: Git, tree: Path, message: str) -> None:
    """Everything in the tree, ignored files too, that no commit has yet."""
    age(tree)
    await git("add", "--all", "--force", ".")
    await git("commit", "-q", "--allow-empty", "--no-verify", "-m", message)


async def seal(git: Git, tree: Path, *, aged: bool = True) -> str:
    """Leave of the git directory only what the commit checked out needs; returns its id. Files that are ``aged`` all
    have the commit's time; what was compiled from them by their time is then stale.
    """
    [commit] = await git("rev-parse", "--verify", "HEAD^{commit}")
    if aged:
        age(tree)
    await git("update-index", "-q", "--refresh")
    await git("repack", "-a", "-d", "-q")
    await git("prune", "--expire=now")
    folder = tree / ".git"
    for path in folder.iterdir():
        if path.name not in KEPT:
            remove_tree(path)
    open_up(tree.parent)
    return commit


def age(tree: Path) -> None:
    """Every file of the working tree as old as the commits, so that each later change shows in its time."""
    for directory, folders, names in os.walk(tree):
        if directory == str(tree) and ".git" in folders:
            folders.remove(".git")
        for name in (*folders, *names):
            os.utime(os.path.join(directory, name), (WHEN, WHEN), follow_symlinks=False)  # noqa: PTH118


def open_up(folder: Path) -> None:
    """Whoever a sandbox's user is may read it, whatever our umask is."""
    for directory, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = os.path.join(directory, name)  # noqa: PTH118
            mode = os.lstat(path).st_mode
            if not stat.S_ISLNK(mode):
                executable = 0o111 if stat.S_ISDIR(mode) or mode & stat.S_IXUSR else 0
                os.chmod(path, 0o444 | executable | (mode & stat.S_IWUSR))  # noqa: PTH101
