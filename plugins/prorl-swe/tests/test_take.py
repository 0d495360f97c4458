"""Patches taken from sandboxes in which an agent did what agents do to a repository."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import pytest_asyncio
from courts import WORKTREE, Court, git

from prorl_swe.patches.patch import Patch
from prorl_swe.patches.take import take_patch

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Desk:
    """``await desk("commands")``: the patch after them, in a sandbox of its own."""

    def __init__(self, court: Court, folder: Path) -> None:
        self._court = court
        self._folder = folder

    async def __call__(self, commands: str, max_bytes: int = 1 << 20, timeout: float = 120.0) -> Patch:
        sandbox = await self._court.open()
        try:
            done = await sandbox.act("bash", {"command": f"cd {WORKTREE}\n{commands}"}, timeout=60)
            assert done.outcome == "ok", done
            return await take_patch(sandbox, self._court.prepared, max_bytes, timeout=timeout)
        finally:
            await sandbox.stop(grace=0)

    def applied(self, patch: Patch) -> Path:
        """A fresh base with the patch."""
        assert patch.problem is None
        [source] = [bind.source for bind in self._court.prepared.spec.binds if bind.target == WORKTREE]
        tree = self._folder / "tree"
        subprocess.run(["git", "-c", "safe.directory=*", "clone", "-q", source, tree], check=True)
        git(tree, "apply", "--index", "--binary", "-", given=patch.data)
        return tree


def content(tree: Path, name: bytes) -> bytes:
    return Path(os.fsdecode(bytes(tree) + b"/" + name)).read_bytes()


@pytest_asyncio.fixture(loop_scope="session")
async def desk(jwt: Court, tmp_path: Path) -> Desk:
    return Desk(jwt, tmp_path)


async def test_nothing_was_changed(desk):
    droppings = (
        "mkdir -p jwt/__pycache__ .pytest_cache; touch jwt/__pycache__/x.pyc .pytest_cache/x a.pyc; touch README.rst"
    )
    assert await desk(droppings) == Patch()


async def test_all_kinds_of_changes(desk):
    patch = await desk(r"""
printf 'new\nno newline' > new.txt
printf '\0\1\2binary\377' > data.bin
printf 'caf\351\r\n' > "$(printf 'caf\351 \t"x".txt')"
ln -s jwt link; ln -s /etc/passwd out
chmod +x setup.py 2>/dev/null || chmod +x jwt/api_jwt.py
rm jwt/help.py; mkdir 'a b'; mv jwt/warnings.py 'a b/warnings.py'
printf 'x' >> jwt/types.py; rm -r docs tests; touch empty
""")
    tree = desk.applied(patch)
    assert (tree / "new.txt").read_bytes() == b"new\nno newline"
    assert (tree / "data.bin").read_bytes() == b"\0\1\2binary\377"
    assert content(tree, b'caf\xe9 \t"x".txt') == b"caf\xe9\r\n"
    assert str((tree / "link").readlink()) == "jwt"
    assert str((tree / "out").readlink()) == "/etc/passwd"
    assert (tree / "empty").read_bytes() == b""
    assert (tree / "a b/warnings.py").exists()
    assert not (tree / "jwt/warnings.py").exists()
    assert not (tree / "tests").exists()
    assert any(
        (tree / name).exists() and (tree / name).stat().st_mode & 0o100 for name in ("setup.py", "jwt/api_jwt.py")
    )


async def test_what_was_done_to_git_does_not_matter(desk):
    patch = await desk(r"""
echo 1 > committed; git add committed; git commit -qm one
echo 2 > staged; git add staged
echo 3 > stashed; git add stashed; git stash -q; git checkout -q -b other
git config core.autocrlf true; git config core.fsmonitor 'touch /tmp/ran; false'; git config core.hooksPath /tmp
git config filter.evil.clean 'touch /tmp/ran; tr a-z A-Z'; git config diff.evil.textconv 'touch /tmp/ran; echo'
printf '* filter=evil diff=evil text eol=crlf\n*.py ident export-ignore -diff\n' > .gitattributes
cp .gitattributes .git/info/attributes; echo '*' > .git/info/exclude
printf 'a\r\nb $Id$\n' > mixed.py
git() { echo no; }; export -f git; alias git=false; export GIT_DIR=/nowhere GIT_INDEX_FILE=/dev/null PATH=/tmp
trap 'echo trapped' EXIT DEBUG
""")
    assert set(patch.files) == {"committed", ".gitattributes", "mixed.py"}
    assert b"+a\r\n+b $Id$\n" in patch.data


@pytest.mark.parametrize(
    "done",
    [
        "rm -rf .git",
        "rm -rf .git; git init -q; git add jwt; git commit -qm all",
        "rm -rf .git; touch .git",
        "echo x > .git/index; echo x > .git/HEAD",
    ],
)
async def test_a_git_folder_that_is_gone(desk, done):
    assert (await desk(f"{done}; echo x > new")).files == ("new",)


async def test_repositories_within_the_repository_come_as_files(desk):
    patch = await desk("""
mkdir -p one/deep two; (cd one && git init -q && echo x > a && git add a && git commit -qm a && echo y > deep/b)
(cd two && git init -q && echo z > c); rm -rf jwt/.git; (cd jwt && git init -q); echo 1 >> jwt/types.py
""")
    assert set(patch.files) == {"jwt/types.py", "one/a", "one/deep/b", "two/c"}


async def test_everything_is_gone(desk):
    patch = await desk("rm -rf ./* .[a-z]*")
    assert patch.problem is None
    assert "jwt/api_jwt.py" in patch.files
    assert b"deleted file mode" in patch.data


async def test_files_that_cannot_be_read(desk):
    assert (await desk("mkdir x; echo 1 > x/y; chmod 0 x/y; chmod 0 x; mkfifo pipe")).files == ("x/y",)


async def test_too_much_is_none_and_not_half(desk):
    patch = await desk("head -c 300000 /dev/urandom | base64 > big", max_bytes=100_000)
    assert patch == Patch(problem="a patch of more than 100000 bytes")
    patch = await desk("truncate -s 200M huge", max_bytes=100_000)
    assert patch.data == b""
    assert "more than a patch may hold" in patch.problem


async def test_somebody_goes_on_writing(desk):
    patch = await desk("echo 1 > done; (while :; do date >> busy; echo > jwt/types.py; done) & echo on")
    assert patch.problem is None
    assert {"done", "busy"} <= set(patch.files)


async def test_a_command_that_still_runs_is_no_hindrance(desk, jwt):
    sandbox = await jwt.open()
    try:
        await sandbox.act("bash", {"command": f"cd {WORKTREE}; echo x > new; sleep 1000"}, timeout=0.5)
        await sandbox.act("bash", {"command": "exec false"}, timeout=5)
        assert (await take_patch(sandbox, jwt.prepared)).files == ("new",)
    finally:
        await sandbox.stop(grace=0)


async def test_the_gold_repair_comes_out_as_it_went_in(desk, jwt):
    patch = await desk("git apply <<'END'\n" + jwt.instance.gold_patch + "\nEND\n")
    assert (await jwt.grade(patch.data)).verdict.resolved
