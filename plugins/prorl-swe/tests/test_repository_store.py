"""The store: made once among processes, whole or not there, never removed while in use, bounded."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from prorl.api import SandboxFault, TaskFault
from prorl_swe.repository.store import Store

# argv: folder, what to do once it is held or being made ("wait" for ever), where to note that it was made.
OTHER = """
import asyncio, sys
from pathlib import Path
from prorl_swe.repository.store import Store

folder, what, note = sys.argv[1:]

async def make(part, lock):
    with open(note, "a") as file:
        file.write("made\\n")
    (part / "content").write_text("whole" if what != "die" else "half")
    if what == "die":
        print("making", flush=True)
        await asyncio.sleep(1000)
    await asyncio.sleep(0.3)
    return "it"

async def main():
    held = await Store(Path(folder)).take("base", "key", make)
    print((held.path / "content").read_text(), flush=True)
    if what == "hold":
        await asyncio.sleep(1000)

asyncio.run(main())
"""


def other(folder: Path, what: str, note: Path) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", OTHER, str(folder), what, str(note)]
    path = os.pathsep.join(sys.path)
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "cache"


async def content(part: Path, lock: int) -> str:
    (part / "content").write_bytes(b"x" * 100_000)
    return "100 kB"


async def unexpected(part: Path, lock: int) -> str:
    pytest.fail("it was there")


async def test_made_once_among_processes(folder, tmp_path) -> None:
    note = tmp_path / "note"
    processes = [other(folder, "read", note) for _ in range(4)]
    outputs = [await asyncio.to_thread(process.communicate) for process in processes]
    assert [output for output, _ in outputs] == ["whole\n"] * 4
    assert note.read_text() == "made\n"


async def test_what_was_killed_half_way_is_not_taken_for_whole(folder, tmp_path) -> None:
    process = other(folder, "die", tmp_path / "note")
    assert await asyncio.to_thread(first_line, process) == "making"
    assert len(list((folder / "base").glob("*.part"))) == 1
    end(process)
    store = Store(folder)
    assert store.list() == ()
    with await store.take("base", "key", content) as held:
        assert (held.path / "content").stat().st_size == 100_000
    assert list((folder / "base").glob("*.part")) == []


async def test_prune_clears_what_the_dead_left(folder, tmp_path) -> None:
    process = other(folder, "die", tmp_path / "note")
    await asyncio.to_thread(first_line, process)
    assert Store(folder).prune() == ()
    assert len(list((folder / "base").glob("*.part"))) == 1, "somebody is at it"
    end(process)
    Store(folder).prune()
    assert list((folder / "base").glob("*.part")) == []


async def test_what_another_process_uses_stays(folder, tmp_path) -> None:
    process = other(folder, "hold", tmp_path / "note")
    assert await asyncio.to_thread(first_line, process) == "whole"
    store = Store(folder)
    assert [stored.in_use for stored in store.list()] == [True]
    assert store.prune(max_bytes=0) == ()
    end(process)
    assert [stored.key for stored in store.prune(max_bytes=0)] == ["key"]
    assert store.list() == ()
    assert [path.name for path in (folder / "base").iterdir()] == []


async def test_the_least_recently_used_goes_when_it_grows(folder) -> None:
    store = Store(folder, max_bytes=250_000)
    for key in ("one", "two"):
        (await store.take("base", key, content)).close()
        os.utime(folder / "base" / f"{key}.lock", (1000, 1000))
    (await store.take("base", "one", unexpected)).close()
    (await store.take("env", "three", content)).close()
    assert {stored.key for stored in store.list()} == {"one", "three"}


async def test_what_was_just_made_is_not_the_one_to_go(folder) -> None:
    store = Store(folder, max_bytes=1000)
    with await store.take("base", "large", content) as held:
        assert (held.path / "content").is_file()


async def test_all_who_wait_share_a_failure(folder) -> None:
    tried = []

    async def fails(part: Path, lock: int) -> str:
        tried.append(part)
        (part / "half").write_text("")
        await asyncio.sleep(0.05)
        raise TaskFault("it cannot be made")

    store = Store(folder)
    results = await asyncio.gather(*(store.take("base", "key", fails) for _ in range(8)), return_exceptions=True)
    assert [str(result) for result in results] == ["it cannot be made"] * 8
    assert len(tried) == 1
    assert list((folder / "base").iterdir()) == []


async def test_one_who_gives_up_does_not_spoil_it_for_the_others(folder) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    async def slow(part: Path, lock: int) -> str:
        started.set()
        await go_on.wait()
        return "it"

    store = Store(folder)
    one, two = (asyncio.create_task(store.take("base", "key", slow)) for _ in range(2))
    await started.wait()
    one.cancel()
    with pytest.raises(asyncio.CancelledError):
        await one
    go_on.set()
    (await two).close()


async def test_when_all_give_up_it_is_ended(folder) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def slow(part: Path, lock: int) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return "never"

    store = Store(folder)
    task = asyncio.create_task(store.take("base", "key", slow))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
    assert list((folder / "base").iterdir()) == []


async def test_where_nothing_can_be_kept(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SandboxFault, match="cache"):
        await Store(tmp_path / "file" / "cache").take("base", "key", content)
