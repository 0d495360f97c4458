"""The repository of an image, at its base: copied out of a sandbox once, scrubbed, and shown over the image's own.

What an image holds of a repository may reach beyond the base commit, in refs, reflogs or packs. Its files are kept as
they are, those that git ignores too, for they were built for the image's environment; where they differ from the base
commit (an image's makers mend things) the difference is committed on top, so that it is not taken for the agent's work.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from prorl.api.errors import SandboxFault, TaskFault
from prorl.api.sandbox import Bind, Limits, Sandbox, SandboxSpec
from prorl.host.remove import remove_tree
from prorl_swe.repository import base
from prorl_swe.repository.clone import COMMIT, SCRATCH, fetch
from prorl_swe.repository.git import Git, GitError
from prorl_swe.rows.instance import ImageSource, Instance

Start = Callable[[SandboxSpec], Awaitable[Sandbox]]
OUT = "/prorl-swe-out"
INBOX = "inbox"
COPY_WITHIN = 1800.0
ASK_WITHIN = 300.0
BARE_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n"
OF_A_BARE_ONE = ("HEAD", "objects", "refs", "packed-refs", "shallow")


async def make(source: ImageSource, instance: Instance, start: Start, part: Path, lock: int) -> str:
    """See :data:`prorl_swe.repository.store.Make`."""
    tree = part / base.TREE
    await asyncio.to_thread(_open_to_anybody, part / INBOX)
    python = await _copy_out(source, start, part / INBOX)
    await asyncio.to_thread(_take_over, part / INBOX, tree)
    await asyncio.to_thread(_take_away, tree, source.path, instance.hidden)
    if not await asyncio.to_thread(_take_git_out, tree, part / SCRATCH):
        raise TaskFault(f"{source.reference} has no git repository at {source.path}", code="repository")
    git = Git(tree, lock)
    try:
        await base.init(git)
        commit = instance.base_commit
        if not COMMIT.fullmatch(commit):
            [commit] = await Git(part / SCRATCH, lock)("rev-parse", "--verify", "HEAD^{commit}")
        await fetch(git, part / SCRATCH, commit, part, lock)
        await git("reset", "-q", "--mixed")
        await git("add", "--all", ".")
        if instance.base_patch:
            await base.apply_patch(git, tree, instance.base_patch)
            await git("add", "--all", ".")
        if await git("status", "--porcelain", "--untracked-files=no"):
            await git("commit", "-q", "--no-verify", "-m", "Base")
        await asyncio.to_thread(remove_tree, part / SCRATCH)
        commit = await base.seal(git, tree, aged=False)
    except GitError as error:
        raise TaskFault(f"the repository in {source.reference} cannot be used: {error}", code="repository") from error
    base.write(part, base.Base(commit=commit, python=python))
    return f"{source.reference} {commit[:12]}"


async def _copy_out(source: ImageSource, start: Start, inbox: Path) -> str:
    """Done by a program of the image, in a sandbox of it, into a folder shown there. Returns its python's path."""
    spec = SandboxSpec(
        image=source.reference,
        binds=(Bind(source=str(inbox), target=OUT, writable=True),),
        limits=Limits(memory_mb=None, file_mb=None),
    )
    sandbox = await start(spec)
    try:
        path = shlex.quote(source.path)
        copy = f"cd {path} && cp -dR --preserve=mode,timestamps,links . {OUT}/{base.TREE}"
        await _ask(sandbox, copy, f"{source.path} cannot be copied out of {source.reference}", COPY_WITHIN)
        which = f"cd {path}; {source.activate or ':'} >/dev/null 2>&1; command -v python || command -v python3"
        said = await _ask(sandbox, which, f"{source.reference} has no python", ASK_WITHIN)
        return said.strip().splitlines()[-1]
    finally:
        await sandbox.stop(grace=0)


async def _ask(sandbox: Sandbox, command: str, problem: str, timeout: float) -> str:
    result = await sandbox.act("bash", {"command": command}, timeout=timeout)
    if result.outcome != "ok" or result.data.get("exit_code") != 0:
        raise TaskFault(f"{problem}: {result.error or result.output[-500:].strip()}", code="image_repository")
    return result.output


def _open_to_anybody(inbox: Path) -> None:
    """The sandbox's user is somebody else; the folders above are ours alone."""
    inbox.mkdir()
    inbox.chmod(0o777)


def _take_over(inbox: Path, tree: Path) -> None:
    """As root, what the sandbox's user has written becomes root's."""
    (inbox / base.TREE).rename(tree)
    inbox.rmdir()
    if os.geteuid() == 0:
        for directory, folders, names in os.walk(tree):
            os.chown(directory, 0, 0)
            for name in (*folders, *names):
                os.chown(os.path.join(directory, name), 0, 0, follow_symlinks=False)  # noqa: PTH118
    tree.chmod(0o755)


def _take_away(tree: Path, worktree: str, hidden: Sequence[str]) -> None:
    """What the agent must not see, before it becomes part of the base. What lies elsewhere in the image is the
    handler's to take away.
    """
    for path in hidden:
        place = tree / path.removeprefix(f"{worktree}/")
        if path.startswith(f"{worktree}/") and ".." not in place.parts:
            if place.is_dir() and not place.is_symlink():
                remove_tree(place)
            else:
                place.unlink(missing_ok=True)


def _take_git_out(tree: Path, to: Path) -> bool:
    """Of its git directory the objects and refs, without a setting or a link that git would follow."""
    inner = tree / ".git"
    if inner.is_symlink() or not inner.is_dir():
        return False
    inner.rename(to)
    for path in to.iterdir():
        if path.name not in OF_A_BARE_ONE:
            remove_tree(path)
    for directory, folders, names in os.walk(to):
        for name in (*folders, *names):
            path = Path(directory, name)
            if path.is_symlink():
                path.unlink()
    for name in ("alternates", "http-alternates"):
        (to / "objects" / "info" / name).unlink(missing_ok=True)
    (to / "config").write_text(BARE_CONFIG)
    return (to / "HEAD").is_file() and (to / "objects").is_dir()


async def nothing_starts(spec: SandboxSpec) -> Sandbox:
    """For who prepares repositories without images."""
    raise SandboxFault(f"no sandbox can be started here to copy the repository out of {spec.image}", code="no_runtime")
