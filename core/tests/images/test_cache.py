"""The cache's own rules, without building anything."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from prorl.api import SandboxFault
from prorl.host import locks
from prorl.sandbox.images.cache import Built, ImageCache

MIB = 1 << 20


@pytest.fixture
def cache(tmp_path) -> ImageCache:
    made = ImageCache(tmp_path / "cache")
    made.make()
    return made


def built() -> Built:
    return Built(source="def:x", mode="versioned", digest="d", began=1.0, seconds=2.0, framework="1", base=None)


def put(cache: ImageCache, entry: str, *, mib: int = 1, age: float = 0) -> Path:
    part = cache.part(entry)
    part.write_bytes(bytes(mib * MIB))
    path = cache.commit(entry, part, built())
    os.utime(path, (time.time() - age,) * 2)
    return path


def names(stored) -> list[str]:
    return [one.name for one in stored]


async def test_what_is_kept_is_listed_latest_use_first(cache) -> None:
    put(cache, "old", age=100)
    put(cache, "new", mib=2)
    listed = cache.list()
    assert names(listed) == ["new", "old"]
    assert listed[0].size >= 2 * MIB
    assert listed[0].built == built()
    assert not listed[0].in_use


async def test_pruned_by_size_least_recently_used_first(cache) -> None:
    for number in range(5):
        put(cache, f"image-{number}", age=number * 10)
    assert names(cache.prune(max_bytes=3 * MIB + MIB // 2)) == ["image-3", "image-4"]
    assert names(cache.list()) == ["image-0", "image-1", "image-2"]
    assert not list(cache.folder.glob("image-3*"))


async def test_pruned_by_age(cache) -> None:
    put(cache, "old", age=1000)
    put(cache, "new")
    assert names(cache.prune(max_age=500)) == ["old"]
    assert names(cache.prune(max_age=500)) == []


async def test_nothing_in_use_is_pruned(cache) -> None:
    path = put(cache, "used", age=1000)
    put(cache, "idle", age=1000)
    one, two = await locks.shared(path), await locks.shared(path)
    assert names(cache.prune(max_bytes=0, max_age=0)) == ["idle"]
    assert [stored.in_use for stored in cache.list()] == [True]
    os.close(one)
    assert cache.prune(max_bytes=0) == ()
    os.close(two)
    assert names(cache.prune(max_bytes=0)) == ["used"]
    assert await locks.shared(path) is None


async def test_an_unpacked_root_is_pruned_as_a_whole(cache) -> None:
    root = cache.root("d" * 64)
    (root / "usr").mkdir(parents=True)
    (root / "usr/file").write_bytes(bytes(MIB))
    (root / "usr").chmod(0o500)
    (root.parent / f"{root.name}.lock").touch()
    held = await locks.shared(root.parent / f"{root.name}.lock")
    assert cache.prune(max_bytes=0) == ()
    os.close(held)
    assert names(cache.prune(max_bytes=0)) == ["d" * 64]
    assert list(cache.roots.iterdir()) == []


async def test_an_image_without_its_record_or_the_other_way_round_is_none(cache) -> None:
    path = put(cache, "a")
    assert cache.find("a") == built()
    path.unlink()
    assert cache.find("a") is None
    path = put(cache, "b")
    path.with_suffix(".json").write_text("{")
    assert cache.find("b") is None


async def test_parts_of_the_dead_are_cleared_those_of_the_living_are_not(cache) -> None:
    async with cache.lock("alive"):
        living = cache.part("alive")
        living.write_bytes(b"1")
        dead = cache.part("dead")
        dead.write_bytes(b"1")
        cache.prune()
        assert living.exists()
        assert not dead.exists()
    async with cache.lock("alive"):
        assert not living.exists()


async def test_one_at_a_time(cache) -> None:
    inside = 0

    async def enter() -> None:
        nonlocal inside
        async with cache.lock("x"):
            inside += 1
            assert inside == 1
            await asyncio.sleep(0.01)
            inside -= 1

    await asyncio.gather(*(enter() for _ in range(5)))


async def test_a_waiter_may_give_up(cache) -> None:
    async with cache.lock("x"):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), cache.lock("x"):
                pass
    async with asyncio.timeout(20), cache.lock("x"):
        pass


async def test_a_folder_of_somebody_else(tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SandboxFault, match=r"set \[sandbox\.images\] folder"):
        async with ImageCache(tmp_path / "file").lock("x"):
            pass
