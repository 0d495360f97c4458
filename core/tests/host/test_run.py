"""Programs of the host: to their end, and nothing of them beyond it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from prorl.host import locks
from prorl.host.run import Finished, run

# Starts a daemon that left its session, says so, and waits.
DAEMON = """
import subprocess, sys, time
left = [sys.executable, "-c", "import time; time.sleep(600)"]
print(subprocess.Popen(left, start_new_session=True, stdout=subprocess.DEVNULL).pid, flush=True)
if sys.argv[1] == "wait":
    time.sleep(600)
"""


async def python(code: str, *arguments: str, said: Callable[[str], None] = str, **options: object) -> Finished:
    timeout = options.pop("timeout", 60.0)
    return await run([sys.executable, "-c", code, *arguments], env={}, timeout=timeout, on_line=said, **options)  # type: ignore[arg-type]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_what_it_printed_and_how_it_ended(tmp_path: Path) -> None:
    lines: list[str] = []
    code = "import sys; print('one'); sys.stdout.flush(); print('two', file=sys.stderr); sys.exit(3)"
    done = await python(code, said=lines.append, cwd=tmp_path, log=tmp_path / "log")
    assert (done.code, done.tail, lines) == (3, "one\ntwo", ["one", "two"])
    assert (tmp_path / "log").read_text().endswith("\none\ntwo\n")
    killed = await python("import os; os.kill(os.getpid(), 9)")
    assert killed.code == 137
    missing = await run(["/no/such/program"], env={}, timeout=60, on_line=str)
    assert (missing.code, "cannot start /no/such/program" in missing.tail) == (127, True)


async def test_a_daemon_ends_with_it() -> None:
    lines: list[str] = []
    done = await python(DAEMON, "go", said=lines.append)
    assert done.code == 0
    assert not is_alive(int(lines[0]))


@pytest.mark.parametrize("by", ["cancelling", "its time"])
async def test_all_is_dead_before_it_is_given_up(by: str, tmp_path: Path) -> None:
    """What it is to remove is gone, too, and the lock that it held is free: not before."""
    said: asyncio.Queue[str] = asyncio.Queue()
    part, lock = tmp_path / "part", await locks.exclusive(tmp_path / "lock")
    (part / "half").mkdir(parents=True)
    timeout = 60.0 if by == "cancelling" else 2.0
    options = {"said": said.put_nowait, "timeout": timeout, "locks": [lock], "remove": [part]}
    running = asyncio.create_task(python(DAEMON, "wait", **options))  # type: ignore[arg-type]
    if by == "cancelling":
        daemon = int(await said.get())
        os.close(lock)
        assert locks.try_exclusive(tmp_path / "lock") is None
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not is_alive(daemon)
    else:
        with pytest.raises(TimeoutError):
            await running
        os.close(lock)
    assert not part.exists()
    free = locks.try_exclusive(tmp_path / "lock")
    assert free is not None
    os.close(free)
