"""Folders in and out. The reading and writing is done by a child, so that a large tree holds up nothing else.

::

    pack     child's stdout ── server ── OUTPUT frames ── host
    unpack   host ── INPUT frames (an empty one ends them) ── server ── child's stdin
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping

from .action import Action, BadArgumentsError, argument
from .archive import ArchiveError, Unpacker, pack
from .child import describe_exit, spawn
from .loop import Loop, Timer

INSIDE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
PACKAGE = __package__ or "inside"
START_LINE = "import sys; sys.path.insert(0, {!r}); from {}.transfer import main; main(*sys.argv[1:])"
MAX_MESSAGE = 2000
HIGH_WATER = 256 * 1024


class Transfer:
    """One transfer at a time. ``on_congested`` says whether the host is to be kept from sending more."""

    def __init__(
        self, loop: Loop, env: Mapping[str, str], resolve: Callable[[str], str], on_congested: Callable[[bool], None]
    ) -> None:
        self._loop = loop
        self._on_congested = on_congested
        self._env = env
        self._resolve = resolve
        self._action: Action | None = None
        self._timer: Timer | None = None
        self._outcome = "ok"
        self._unsent = bytearray()
        self._input_ended = False
        self._stdin = self._stdout = self._stderr = -1
        self.pid = 0

    @property
    def busy(self) -> bool:
        return self._action is not None

    @property
    def pids(self) -> list[int]:
        return [self.pid] if self.pid else []

    def start(self, action: Action) -> None:
        direction = argument(action.arguments, "direction", str)
        path = self._resolve(argument(action.arguments, "path", str))
        limit = argument(action.arguments, "max_bytes", int)
        if direction not in ("pack", "unpack"):
            raise BadArgumentsError("'direction' must be 'pack' or 'unpack'")
        line = START_LINE.format(INSIDE, PACKAGE)
        argv = [sys.executable, "-I", "-S", "-c", line, direction, path, str(limit)]
        theirs_in, self._stdin = os.pipe()
        self._stdout, theirs_out = os.pipe()
        self._stderr, theirs_err = os.pipe()
        try:
            self.pid = spawn(argv, self._env, {0: theirs_in, 1: theirs_out, 2: theirs_err}, "/")
        except OSError:
            self._close()
            raise
        finally:
            for fd in (theirs_in, theirs_out, theirs_err):
                os.close(fd)
        for fd in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(fd, False)
        self._action, self._outcome, self._input_ended = action, "ok", direction == "pack"
        self._unsent.clear()
        self._timer = self._loop.later(action.timeout, lambda: self._end("timeout"))
        self._loop.on_exit(self.pid, self._on_exit)
        self.resume()
        action.welcome()

    def feed(self, action: Action, data: bytes) -> None:
        if action is self._action and self._stdin >= 0:
            self._unsent += data
            self._input_ended = self._input_ended or not data
            self._send()

    def cancel(self, action: Action) -> None:
        if action is self._action:
            self._end("cancelled")

    def pause(self) -> None:
        if self._stdout >= 0:
            self._loop.forget(self._stdout)

    def resume(self) -> None:
        if self._stdout >= 0:
            self._loop.watch(self._stdout, self._on_output, None)

    def _end(self, outcome: str) -> None:
        self._outcome = outcome if self._outcome == "ok" else self._outcome
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)

    def _send(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: os.write(self._stdin, self._unsent[:65536])]
        except BlockingIOError:
            pass
        except OSError:  # it has died: its exit callback ends the action
            self._unsent.clear()
        self._loop.watch(self._stdin, None, self._send if self._unsent else None)
        self._on_congested(len(self._unsent) > HIGH_WATER)
        if self._input_ended and not self._unsent:
            self._loop.forget(self._stdin)
            os.close(self._stdin)
            self._stdin = -1

    def _on_output(self) -> None:
        self._read_output()

    def _read_output(self) -> bool:
        try:
            data = os.read(self._stdout, 65536)
        except BlockingIOError:
            return False
        if not data:
            self._loop.forget(self._stdout)
        elif self._action:
            self._action.stream(data)
        return bool(data)

    def _on_exit(self, status: int) -> None:
        self.pid = 0
        while self._read_output():
            pass
        message = b""
        with contextlib.suppress(OSError):
            message = os.read(self._stderr, MAX_MESSAGE)
        self._close()
        if self._timer:
            self._timer.cancel()
        action, self._action = self._action, None
        if not action:
            return
        if self._outcome == "ok" and status != 0:
            text = message.decode("utf-8", "replace").strip() or describe_exit(status)
            action.finish("error", error=text)
        else:
            action.finish(self._outcome)

    def _close(self) -> None:
        for fd in (self._stdin, self._stdout, self._stderr):
            if fd >= 0:
                self._loop.forget(fd)
                os.close(fd)
        self._stdin = self._stdout = self._stderr = -1
        self._unsent.clear()
        self._on_congested(False)


def main(direction: str, path: str, max_bytes: str) -> None:
    """The child. Its last words are the error, if its exit code is 1."""
    try:
        if direction == "pack":
            for data in pack(path, int(max_bytes)):
                _write(data)
            return
        unpacker = Unpacker(path, int(max_bytes))
        while True:
            data = os.read(0, 65536)
            if not data:
                break
            unpacker.feed(data)
        unpacker.check_end()
    except (ArchiveError, OSError) as error:
        sys.stderr.write(str(error))
        sys.exit(1)


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]
