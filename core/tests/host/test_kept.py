"""Locks, and what goes from a cache that grows."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import msgspec
import pytest

from prorl.host import locks
from prorl.host.oldest import remove_oldest
from prorl.host.remove import remove_tree


class Kept(msgspec.Struct):
    name: str
    size: int
    used: float = 0.0


async def test_many_may_use_what_one_may_not_remove(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    assert await locks.shared(path) is None
    path.touch()
    users = [await locks.shared(path) for _ in range(2)]
    assert locks.try_exclusive(path) is None
    for user in users:
        assert user is not None
        os.close(user)
    alone = locks.try_exclusive(path)
    assert alone is not None
    waiting = asyncio.create_task(locks.shared(path))
    path.unlink()
    os.close(alone)
    assert await waiting is None  # it got the lock of a file that is not there any more


async def test_whoever_comes_next_waits(tmp_path: Path) -> None:
    first = await locks.exclusive(tmp_path / "lock")
    second = asyncio.create_task(locks.exclusive(tmp_path / "lock"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(second), 3 * locks.POLL)
    os.close(first)
    os.close(await asyncio.wait_for(second, 60))


def test_the_oldest_go_until_the_rest_fits() -> None:
    kept = [Kept("new", 4), Kept("held", 4), Kept("old", 4), Kept("small", 2)]
    gone = remove_oldest(kept, lambda one: one.name != "held", max_bytes=8, max_age=None)
    assert [one.name for one in gone] == ["old", "small"]


def test_what_nobody_used_for_long_goes() -> None:
    kept = [Kept("new", 4, time.time()), Kept("old", 4, time.time() - 1000)]
    assert [one.name for one in remove_oldest(kept, lambda _: True, max_bytes=None, max_age=500)] == ["old"]
    assert remove_oldest(kept, lambda _: False, max_bytes=0, max_age=0) == ()


def test_a_tree_that_does_not_want_to_go(tmp_path: Path) -> None:
    outside, tree = tmp_path / "outside", tmp_path / "tree"
    (tree / "closed").mkdir(parents=True)
    outside.mkdir()
    (outside / "kept").touch()
    (tree / "closed" / "file").touch()
    (tree / "link").symlink_to(outside)
    (tree / "closed").chmod(0o500)
    tree.chmod(0o500)
    remove_tree(tree)
    assert not tree.exists()
    (tmp_path / "link").symlink_to(outside)
    remove_tree(tmp_path / "link")
    remove_tree(tmp_path / "nothing")
    assert not (tmp_path / "link").is_symlink()
    assert (outside / "kept").exists()
