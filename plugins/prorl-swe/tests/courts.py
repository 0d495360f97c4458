"""Grading as the handler does it, on the rows that come with this package: real repositories, sandboxes and tests."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from prorl.api import Sandbox, SandboxSpec
from prorl.api.sandbox import Limits
from prorl.sandbox.manager import SandboxManager
from prorl_swe.grading.graded import Graded
from prorl_swe.grading.grader import Grader
from prorl_swe.patches.patch import Patch
from prorl_swe.repository.cache import RepositoryCache
from prorl_swe.repository.prepared import WORKTREE, Prepared
from prorl_swe.rows import Instance, read_row

DATA = Path(__file__).resolve().parent / "data" / "pypi.jsonl"
SPEC = SandboxSpec(workdir=WORKTREE, limits=Limits(memory_mb=4096, processes=1024, file_mb=1024, tmp_mb=1024))
KEPT = 5  # P2P of a row that are enough to see one break
Edit = Callable[[Path], None]


class Court:
    """One row, its repository, and a grader for patches of it. ``court.some`` has a few of its P2P only."""

    def __init__(self, instance: Instance, prepared: Prepared, sandboxes: SandboxManager, folder: Path) -> None:
        self.instance = instance
        self.prepared = prepared
        self.sandboxes = sandboxes
        self._folder = folder
        self.gold = (instance.gold_patch or "").encode()
        beside = {name.partition("::")[0] for name in instance.fail_to_pass}
        near = [name for name in instance.pass_to_pass if name.partition("::")[0] in beside]
        self.some = msgspec.structs.replace(instance, pass_to_pass=tuple(near[:KEPT]))

    async def open(self) -> Sandbox:
        return await self.sandboxes.start(self.prepared.spec)

    async def grade(self, patch: bytes, instance: Instance | None = None, **settings: Any) -> Graded:
        grader = Grader(instance or self.some, self.prepared, self.sandboxes.start, **settings)
        return await grader.grade(Patch(data=patch))

    async def patch(self, edit: Edit, *, gold: bool = False) -> bytes:
        """What ``edit`` does to a copy of the base (with the gold patch, by wish), as a patch."""
        return await asyncio.to_thread(self._patch, edit, gold)

    def _patch(self, edit: Edit, gold: bool) -> bytes:
        [source] = [bind.source for bind in self.prepared.spec.binds if bind.target == WORKTREE]
        tree = self._folder / "tree"
        shutil.copytree(source, tree, symlinks=True)
        try:
            for path in tree.rglob("*"):
                if not path.is_symlink():
                    path.chmod(path.stat().st_mode | 0o200)
            if gold:
                git(tree, "apply", "-", given=self.gold)
            edit(tree)
            git(tree, "add", "--all", "--force", ".")
            return git(tree, "diff", "--cached", "--binary", "--full-index", "--no-renames")
        finally:
            shutil.rmtree(tree)


class Courts:
    def __init__(self, repositories: RepositoryCache, sandboxes: SandboxManager, folder: Path) -> None:
        self._repositories = repositories
        self._sandboxes = sandboxes
        self._folder = folder
        self.rows = [json.loads(line) for line in DATA.read_text("utf-8").splitlines()]

    async def __call__(self, name: str) -> Court:
        [row] = [row for row in self.rows if row["repo"] == f"pypi/{name}"]
        instance = read_row(row)
        lease = await self._repositories.prepare(instance, SPEC)
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        return Court(instance, lease.prepared, self._sandboxes, folder)


def git(tree: Path, *arguments: str, given: bytes | None = None) -> bytes:
    settings = ["-c", "safe.directory=*", "-c", "core.autocrlf=false"]
    command = ["git", *settings, *arguments]
    return subprocess.run(command, cwd=tree, input=given, capture_output=True, check=True).stdout


def prepend(path: str, text: str) -> Edit:
    def edit(tree: Path) -> None:
        file = tree / path
        file.parent.mkdir(parents=True, exist_ok=True)
        old = file.read_text("utf-8") if file.exists() else ""
        file.write_text(text + old, "utf-8")

    return edit


def replace(path: str, old: str, new: str) -> Edit:
    def edit(tree: Path) -> None:
        text = (tree / path).read_text("utf-8")
        assert old in text
        (tree / path).write_text(text.replace(old, new), "utf-8")

    return edit
