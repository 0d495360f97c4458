"""A base made of a clone: what came later in that repository cannot be found in it, by any means of git's."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from prorl.api import SandboxSpec, TaskFault
from prorl_swe.repository.cache import RepositoryCache
from prorl_swe.rows import CloneSource, Instance

SECRET = "the fix that nobody must see"
BASE_PATCH = "--- a/pkg/code.py\n+++ b/pkg/code.py\n@@ -1 +1 @@\n-value = 1\n+value = 99\n"


def git(folder: Path, *arguments: str, check: bool = True) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
    who = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "safe.directory=*"]
    done = subprocess.run(
        ["git", *who, *arguments], cwd=folder, env=env, check=False, capture_output=True, text=True, timeout=60
    )
    assert not check or done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def clone(tmp_path) -> tuple[Path, str]:
    """``(folder, base commit)``: with all that may come after it, and with settings and hooks that must not be run."""
    folder = tmp_path / "clone"
    (folder / "pkg").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "trunk")
    for text in ("value = 0\n", "value = 1\n"):
        (folder / "pkg" / "code.py").write_text(text)
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", text)
    base = git(folder, "rev-parse", "HEAD").strip()
    git(folder, "tag", "-a", "v1", "-m", "first", base)
    (folder / "pkg" / "code.py").write_text(f"# {SECRET}\n")
    git(folder, "commit", "-q", "-a", "-m", SECRET)
    git(folder, "tag", "v2")
    git(folder, "notes", "add", "-m", SECRET, base)
    (folder / "pkg" / "code.py").write_text(f"# stashed {SECRET}\n")
    git(folder, "stash")
    git(folder, "checkout", "-q", "-b", "side", base)
    (folder / "side.py").write_text(SECRET)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", f"side {SECRET}")
    git(folder, "remote", "add", "origin", "https://example.invalid/x.git")
    git(folder, "gc", "-q")
    hook = folder / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    git(folder, "config", "core.fsmonitor", f"touch {tmp_path}/ran; false")
    return folder, base


def instance(location: Path, commit: str, **more: object) -> Instance:
    return Instance(
        kind="pypi",
        instance_id="clone",
        repo="somebody/pkg",
        version="1.2",
        base_commit=commit,
        problem_statement="",
        source=CloneSource(location=str(location), commit=commit, requirements=()),
        fail_to_pass=("t",),
        pass_to_pass=(),
        **more,
    )


@pytest.fixture
async def cache(tmp_path, monkeypatch):
    """Without the environment of tests, which is the same for all sources."""

    async def nothing(wanted, part: Path, lock: int) -> str:
        (part / "venv").mkdir()
        return "nothing"

    monkeypatch.setattr("prorl_swe.repository.environment.make", nothing)
    made = RepositoryCache(tmp_path / "cache")
    yield made
    await made.close()


async def tree_of(cache: RepositoryCache, wanted: Instance) -> tuple[Path, str]:
    with await cache.prepare(wanted, SandboxSpec()) as lease:
        shown = next(bind for bind in lease.prepared.spec.binds if bind.own)
        assert shown.target == lease.prepared.worktree
        return Path(shown.source), lease.prepared.base


def assert_nothing_later(tree: Path, base: str, commits: int) -> None:
    assert git(tree, "rev-parse", "HEAD").strip() == base
    assert len(git(tree, "log", "--all", "--format=%H").split()) == commits
    assert git(tree, "reflog", "--all") == ""
    assert git(tree, "tag") + git(tree, "remote") + git(tree, "stash", "list") + git(tree, "notes") == ""
    assert git(tree, "for-each-ref", "--format=%(refname)").split() == ["refs/heads/main"]
    assert git(tree, "fsck", "--unreachable", "--lost-found", "--no-reflogs") == ""
    objects = [line.split()[0] for line in git(tree, "cat-file", "--batch-all-objects", "--batch-check").splitlines()]
    assert all(SECRET not in git(tree, "cat-file", "-p", name) for name in objects)
    assert not any(
        (tree / ".git" / name).exists() for name in ("hooks", "logs", "ORIG_HEAD", "FETCH_HEAD", "lost-found")
    )
    assert not (tree / ".git" / "objects" / "info" / "alternates").exists()
    assert git(tree, "status", "--porcelain") == ""


@pytest.mark.parametrize("form", ["folder", "bare", "bundle", "linked", "alternates"])
async def test_nothing_later_can_be_found(cache, clone, tmp_path, form: str) -> None:
    folder, base = clone
    location = {"folder": folder}.get(form, tmp_path / form)
    if form == "bare":
        git(tmp_path, "clone", "-q", "--mirror", str(folder), str(location))
    elif form == "bundle":
        git(folder, "bundle", "create", "-q", str(location), "--all")
    elif form == "linked":
        git(folder, "worktree", "add", "-q", str(location))
    elif form == "alternates":
        git(tmp_path, "clone", "-q", "--shared", str(folder), str(location))
    (tmp_path / "ran").unlink(missing_ok=True)
    tree, found = await tree_of(cache, instance(location, base))
    assert found == base
    assert_nothing_later(tree, base, commits=2)
    assert (tree / "pkg" / "code.py").read_text() == "value = 1\n"
    assert not (tmp_path / "ran").exists()


async def test_a_base_patch_is_part_of_the_base(cache, clone) -> None:
    folder, base = clone
    tree, found = await tree_of(cache, instance(folder, base, base_patch=BASE_PATCH))
    assert found != base
    assert_nothing_later(tree, found, commits=3)
    assert (tree / "pkg" / "code.py").read_text() == "value = 99\n"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"commit": "f" * 40}, "commit"),
        ({"commit": "trunk"}, "commit"),
        ({"commit": "--help"}, "commit"),
        ({"location": "/no/such/clone"}, "clone_missing"),
        ({"location": "relative"}, "clone_missing"),
        ({"location": "/etc/hosts"}, "repository"),
        ({"base_patch": BASE_PATCH.replace("value = 1", "value = 7")}, "base_patch"),
    ],
)
async def test_what_cannot_be_had_is_the_rows_fault(cache, clone, change, code: str) -> None:
    folder, base = clone
    given = {"location": folder, "commit": base} | change
    with pytest.raises(TaskFault) as caught:
        await cache.prepare(instance(**given), SandboxSpec())
    assert caught.value.code == code, caught.value
    assert cache.store.list() == ()
    assert list((cache.store.folder / "base").glob("*.part")) == []


async def test_many_at_once_make_it_once(cache, clone, monkeypatch) -> None:
    folder, base = clone
    made = []
    real = __import__("prorl_swe.repository.clone", fromlist=["make"]).make

    async def counted(*arguments: object) -> str:
        made.append(1)
        await asyncio.sleep(0)
        return await real(*arguments)

    monkeypatch.setattr("prorl_swe.repository.clone.make", counted)
    leases = await asyncio.gather(*(cache.prepare(instance(folder, base), SandboxSpec()) for _ in range(32)))
    assert len(made) == 1
    assert len({lease.prepared.spec.binds for lease in leases}) == 1
    assert cache.store.prune(max_bytes=0) == ()
    for lease in leases:
        lease.close()
    assert {stored.kind for stored in cache.store.prune(max_bytes=0)} == {"base", "env"}
