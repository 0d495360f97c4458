"""A commit of a local repository, with its ancestors: what came later in that repository does not travel."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from prorl.api.errors import TaskFault
from prorl.host.remove import remove_tree
from prorl_swe.repository import base, project
from prorl_swe.repository.git import Git, GitError
from prorl_swe.rows.instance import CloneSource, Instance

SCRATCH = "scratch.git"
_PARSE = ("rev-parse", "--verify", "--quiet", "--end-of-options")
COMMIT = re.compile(r"[0-9a-fA-F]{7,64}")


async def make(source: CloneSource, instance: Instance, part: Path, lock: int) -> str:
    """See :data:`prorl_swe.repository.store.Make`."""
    location, tree = Path(source.location), part / base.TREE
    is_bundle = await asyncio.to_thread(location.is_file)
    if not location.is_absolute() or not (is_bundle or await asyncio.to_thread(location.is_dir)):
        raise TaskFault(f"there is no repository at {location}: name an absolute path", code="clone_missing")
    tree.mkdir()
    git = Git(tree, lock)
    try:
        await base.init(git)
        if is_bundle:
            location = await unbundle(location, part, lock)
        await fetch(git, location, source.commit, part, lock)
        await git("reset", "-q", "--hard")
        if instance.base_patch:
            await base.apply_patch(git, tree, instance.base_patch)
            await base.commit_all(git, tree, "Base")
        name = instance.repo.rpartition("/")[2]
        found = await asyncio.to_thread(project.install, tree, part / base.PROJECT, name, instance.version or "0")
        commit = await base.seal(git, tree)
    except GitError as error:
        raise TaskFault(f"{source.commit} of {source.location} cannot be had: {error}", code="repository") from error
    await asyncio.to_thread(remove_tree, part / SCRATCH)
    base.write(part, base.Base(commit=commit, requirements=found.required, optional=found.optional))
    return f"{name} {source.commit[:12]}"


async def unbundle(bundle: Path, part: Path, lock: int) -> Path:
    """A bare repository of everything in the bundle. Raises :class:`GitError`."""
    folder = part / SCRATCH
    folder.mkdir()
    git = Git(folder, lock)
    await git("init", "-q", "--bare", "--template=", ".")
    await git("fetch", "-q", "--no-tags", str(bundle), "+refs/*:refs/bundle/*")
    return folder


async def fetch(git: Git, location: Path, commit: str, part: Path, lock: int) -> None:
    """Only what can be reached from it. Raises :class:`TaskFault` where there is no such commit."""
    if not COMMIT.fullmatch(commit):
        raise TaskFault(f"{commit!r} is no commit: name one by its id, in hex", code="commit")
    try:
        where = f"--git-dir={await asyncio.to_thread(git_dir, location)}"
        [full] = await Git(part, lock)(where, *_PARSE, f"{commit}^{{commit}}")
    except (GitError, ValueError) as error:
        raise TaskFault(f"there is no commit {commit} in {location}: {error}", code="commit") from error
    to = f"{full}:refs/heads/main"
    await git("fetch", "-q", "--no-tags", "--no-write-fetch-head", "--update-shallow", "-u", str(location), to)


def git_dir(location: Path) -> Path:
    """Of a working tree (also one whose .git is a file), or the bare repository itself."""
    inner = location / ".git"
    if inner.is_file():
        named = inner.read_text("utf-8", "replace").removeprefix("gitdir:").strip()
        return Path(location, named)
    return inner if inner.is_dir() else location
