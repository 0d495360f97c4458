"""Running a program of the host: guarded, bounded in time, its output line by line."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar

from prorl.host import guard

T = TypeVar("T")
MAX_LINE = 64 * 1024
KEPT_LINES = 40


class Finished:
    """``code`` as a shell gives it, ``tail`` the last lines of what it printed."""

    def __init__(self, code: int, tail: Sequence[str]) -> None:
        self.code = code
        self.tail = "\n".join(tail)


class Guarded:
    """A command under a guard, with its output in a pipe. ``locks`` are descriptors the guard holds until all ended."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        locks: Sequence[int] = (),
        remove: Sequence[Path] = (),
    ) -> None:
        watched, self._held = os.pipe()
        try:
            self._process = subprocess.Popen(
                guard.command(argv, watched=watched, remove=remove),
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(watched, *locks),
                start_new_session=True,
            )
        except BaseException:
            os.close(self._held)
            raise
        finally:
            os.close(watched)
        assert self._process.stdout is not None  # noqa: S101 - by the arguments above
        self.output: BinaryIO = self._process.stdout  # type: ignore[assignment]
        self.pid = self._process.pid

    def end(self) -> None:
        """Have everything killed. Idempotent; returns at once."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def wait(self) -> int:
        """Blocks until all has ended."""
        code = self._process.wait()
        self.end()
        self.output.close()
        return code

    def poll(self) -> int | None:
        return self._process.poll()


async def to_its_end(function: Callable[..., T], *arguments: object) -> T:
    """In a thread; cancelled, it is waited for all the same, so that what it started is not still there afterwards."""
    running = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


async def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout: float,
    on_line: Callable[[str], None],
    cwd: Path | None = None,
    log: Path | None = None,
    locks: Sequence[int] = (),
    remove: Sequence[Path] = (),
) -> Finished:
    """Run to the end. Raises :class:`TimeoutError`; on that, and on cancellation, the whole tree is dead first."""
    loop = asyncio.get_running_loop()
    tail: deque[str] = deque(maxlen=KEPT_LINES)
    guarded = Guarded(argv, env=env, cwd=cwd, locks=locks, remove=remove)

    def take(line: str) -> None:
        tail.append(line)
        on_line(line)

    def read() -> None:
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(log.open("wb")) if log else None
            if file:
                file.write(f"$ {shlex.join(argv)}\n".encode())
            while raw := guarded.output.readline(MAX_LINE):
                if file:
                    file.write(raw)
                    file.flush()
                line = raw.decode("utf-8", "replace").rstrip()
                with contextlib.suppress(RuntimeError):  # the loop has ended; so will the program
                    loop.call_soon_threadsafe(take, line)

    def follow() -> int:
        try:
            read()
        finally:
            code = guarded.wait()
        return code

    following = asyncio.ensure_future(asyncio.to_thread(follow))
    try:
        async with asyncio.timeout(timeout):
            code = await asyncio.shield(following)
    except BaseException:
        guarded.end()
        await asyncio.wait([following])
        raise
    await asyncio.sleep(0)  # the last lines are callbacks of this loop, queued before the end
    return Finished(code, tail)
