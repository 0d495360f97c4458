"""Starting a sandbox's outermost process and ending it for certain.

``PR_SET_PDEATHSIG`` (bwrap's ``--die-with-parent``) fires when the *thread* that forked ends, so one thread, as old as
its runtime, does all the forking. Processes are held by pidfd: a recycled pid is never signalled.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from prorl.api.errors import SandboxFault

MAX_STDERR = 4096
TERMINAL_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


class Child:
    """A process of ours, from start to being reaped. ``stderr`` is what it said while starting (4 KiB at most)."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid
        self._pidfd = os.pidfd_open(process.pid)
        self._reaped = False

    def kill(self, number: int = signal.SIGKILL) -> None:
        if not self._reaped:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    async def ended(self) -> None:
        """Returns when it has ended. It is not reaped yet, so nobody else can have its pid as process or session."""
        if not self._reaped:
            await readable(self._pidfd)

    async def wait(self) -> None:
        """Returns when it has ended and was reaped. Idempotent, for one waiter at a time."""
        if self._reaped:
            return
        await readable(self._pidfd)
        self._process.wait()
        self._reaped = True
        os.close(self._pidfd)

    def read_stderr(self) -> str:
        stream = self._process.stderr
        if stream is None or stream.closed:
            return ""
        os.set_blocking(stream.fileno(), False)
        try:
            data = os.read(stream.fileno(), MAX_STDERR)
        except BlockingIOError:
            data = b""
        return TERMINAL_CODES.sub("", data.decode("utf-8", "replace")).strip()

    def close_stderr(self) -> None:
        if self._process.stderr is not None:
            self._process.stderr.close()


class Spawner:
    """The thread that forks. Its end is the end of every sandbox it started."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"spawn-{name}")

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        pass_fds: Sequence[int],
        end: Callable[[Child], Awaitable[None]],
        own_session: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> Child:
        """Start a program with ``env`` and nothing of ours; ``end`` ends it again if we are cancelled meanwhile.

        Raises :class:`SandboxFault` when the program cannot be started.
        """

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                list(argv),
                env=dict(env or {}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=tuple(pass_fds),
                start_new_session=own_session,
            )

        starting = asyncio.get_running_loop().run_in_executor(self._executor, start)
        try:
            return Child(await asyncio.shield(starting))
        except asyncio.CancelledError:
            # The thread goes on regardless. Wait for it: the descriptors it passes on must not be closed meanwhile, and
            # what it has started must not be forgotten.
            with contextlib.suppress(OSError):
                await end(Child(await starting))
            raise
        except OSError as error:
            raise SandboxFault(f"cannot start {argv[0]}: {error}", code="start_failed") from error


async def readable(fd: int) -> None:
    """Wait until ``fd`` is readable; for a pidfd: until the process has ended."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)


async def kill_and_wait(pidfd: int) -> None:
    """SIGKILL by pidfd, and wait for the end of a process that is not our child; closes the pidfd."""
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        await readable(pidfd)
    finally:
        os.close(pidfd)
