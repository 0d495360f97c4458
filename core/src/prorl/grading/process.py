"""One worker process as the pool sees it: start, call, kill, reap.

The process leads a session of its own, so one signal to its group ends it and what it started. It is reaped only by
:meth:`Worker.reap`, after the kill, so the group that is killed can't be a stranger with a recycled number.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from prorl.api.errors import GraderFault

HEADER = struct.Struct(">I")
MAX_REPLY_BYTES = 2**20
# What a grader may know of the server's environment: enough to find Python's modules, and no secrets.
PASSED_ON = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "PYTHONPATH",
    "PYTHONHOME",
    "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",
)


class Answer(msgspec.Struct):
    """A reply frame. Exactly one of ``result``, ``error`` (the function raised) and ``bad`` is set."""

    id: str
    result: dict[str, Any] | None = None
    error: str | None = None
    traceback: str | None = None
    bad: str | None = None


class Ready(msgspec.Struct):
    ready: bool
    error: str | None = None


class Worker:
    """A process that has its function loaded. Use :meth:`start`; after a failed call it is only good for killing."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self.calls = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    async def start(cls, target: str, *, memory_mb: int, doors: Sequence[str], preload: Sequence[str]) -> Worker:
        """Start the process. It is not ready yet: see :meth:`ready`."""
        ours, theirs = socket.socketpair()
        process = None
        try:
            with theirs:
                arguments = [target, str(theirs.fileno()), str(os.getpid()), str(memory_mb)]
                arguments += [",".join(doors), *preload]
                # -P keeps the server's working folder, where a job may have put a sympy.py, off the import path.
                process = subprocess.Popen(  # noqa: ASYNC220 - a vfork of milliseconds; must be this very thread
                    [sys.executable, "-P", "-m", "prorl.grading.worker", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                    env={name: os.environ[name] for name in PASSED_ON if name in os.environ} | {"PYTHONHASHSEED": "0"},
                )
            ours.setblocking(False)
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=MAX_REPLY_BYTES)
        except BaseException:
            ours.close()
            if process is not None:
                process.kill()
                process.wait()
            raise
        return cls(process, reader, writer)

    async def ready(self, timeout: float) -> None:
        """Wait until the function is imported. Raises ``GraderFault`` (code ``start``)."""
        try:
            async with asyncio.timeout(timeout):
                answer = msgspec.json.decode(await self._receive(), type=Ready)
        except TimeoutError:
            raise GraderFault(f"the grader was not imported within {timeout:g} s", code="start") from None
        except (asyncio.IncompleteReadError, ConnectionError, msgspec.MsgspecError) as error:
            raise GraderFault(f"the grader died while it was imported: {type(error).__name__}", code="start") from error
        if not answer.ready:
            raise GraderFault(f"the grader cannot be imported: {answer.error}", code="start")

    async def call(self, payload: dict[str, Any], timeout: float) -> Answer:
        """One call. Raises ``GraderFault`` (``timeout``, ``crashed``, ``bad_reply``): then kill this worker."""
        call_id = secrets.token_hex(16)
        body = msgspec.json.encode({"id": call_id, "timeout": timeout, "payload": payload})
        self.calls += 1
        try:
            async with asyncio.timeout(timeout):
                self._writer.write(HEADER.pack(len(body)) + body)
                await self._writer.drain()
                answer = msgspec.json.decode(await self._receive(), type=Answer)
        except TimeoutError:
            raise GraderFault(f"no verdict within {timeout:g} s", code="timeout") from None
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise GraderFault("the grader's process ended during the call", code="crashed") from error
        except msgspec.MsgspecError as error:
            raise GraderFault(f"the grader's reply cannot be read: {error}", code="bad_reply") from error
        if answer.id != call_id:
            raise GraderFault("the grader's reply does not belong to this call", code="bad_reply")
        if answer.bad is not None or (answer.result is None and answer.error is None):
            raise GraderFault(answer.bad or "the grader's reply is empty", code="bad_reply")
        return answer

    async def _receive(self) -> bytes:
        (size,) = HEADER.unpack(await self._reader.readexactly(HEADER.size))
        if size > MAX_REPLY_BYTES:
            raise GraderFault(f"the grader's reply has {size} bytes, more than {MAX_REPLY_BYTES}", code="bad_reply")
        return await self._reader.readexactly(size)

    def kill(self) -> None:
        """End the whole group at once. May be called more than once, but not after :meth:`reap`."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def reap(self) -> None:
        """Wait for the killed process to be gone and let go of the socket."""
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()
        await asyncio.to_thread(self._process.wait)
