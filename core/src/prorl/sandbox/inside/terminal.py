"""The pty a shell prints to, and the fence that tells when everything printed so far has been read."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import termios
from collections.abc import Callable
from fcntl import ioctl

from .loop import Loop

ROWS, COLUMNS = 10_000, 200  # a pager that leaves after one screen shows whole files
MAX_BETWEEN = 16 * 1024
MAX_DRAIN = 1 << 20


class Terminal:
    """``sink`` gets the output; without one (between actions) the last 16 KiB are kept for the next."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.master, self.slave = os.openpty()
        attributes = termios.tcgetattr(self.slave)
        attributes[3] &= ~termios.ECHO
        attributes[1] &= ~termios.OPOST
        # ^Z would stop the shell too, which has no job control to go on with.
        attributes[6][termios.VSUSP] = b"\0"
        self._attributes = attributes
        self.reset()
        ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        for fd in (self.master, self.slave):
            os.set_blocking(fd, False)
        self._sink: Callable[[bytes], None] | None = None
        self._on_fence: Callable[[], None] | None = None
        self._between = b""
        self._fence = b""
        self._unsent = b""
        self._held = b""
        self.resume()

    def open_slave(self) -> int:
        """A blocking descriptor for a child: its own open file, so that ours can stay non-blocking."""
        return os.open(os.ttyname(self.slave), os.O_RDWR | os.O_NOCTTY)

    def reset(self) -> None:
        """Undo what a command did to the modes, and drop input that nobody read."""
        termios.tcsetattr(self.slave, termios.TCSANOW, self._attributes)
        termios.tcflush(self.slave, termios.TCIFLUSH)

    def pause(self) -> None:
        self.paused = True
        self._loop.forget(self.master)

    def resume(self) -> None:
        self.paused = False
        self._loop.watch(self.master, self._read, None)

    def attach(self, sink: Callable[[bytes], None]) -> None:
        self._sink = sink
        sink(self._between)
        self._between = b""

    def detach(self) -> None:
        self._sink = self._on_fence = None
        self._fence = self._held = self._unsent = b""

    def interrupt(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(os.tcgetpgrp(self.master), signal.SIGINT)

    def write(self, text: bytes) -> int:
        try:
            return os.write(self.master, text)
        except OSError:
            return 0

    def settle(self, on_fence: Callable[[], None]) -> None:
        """Call back when everything printed until now has gone to the sink. The fence is nobody's to know before."""
        self._on_fence = on_fence
        self._fence = self._unsent = os.urandom(16).hex().encode()
        self._send_fence()

    def _send_fence(self) -> None:
        if not self._unsent:
            return
        try:
            self._unsent = self._unsent[os.write(self.slave, self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:  # hung up with its session leader: nobody can write any more
            self._drain()
            return
        if self._unsent:
            self._loop.later(0.01, self._send_fence)

    def _drain(self) -> None:
        read = 0
        with contextlib.suppress(OSError):
            while read < MAX_DRAIN:
                data = os.read(self.master, 65536)
                read += len(data)
                self._take(data)
        self.reached()

    def _read(self) -> None:
        try:
            data = os.read(self.master, 65536)
        except BlockingIOError:
            return
        except OSError:
            self._loop.forget(self.master)
            return
        self._take(data)

    def _take(self, data: bytes) -> None:
        if self._sink is None:
            self._between = (self._between + data)[-MAX_BETWEEN:]
            return
        if not self._fence:
            self._sink(data)
            return
        before, found, after = (self._held + data).partition(self._fence)
        keep = 0 if found else min(len(before), len(self._fence) - 1)
        self._held = before[len(before) - keep :]
        self._sink(before[: len(before) - keep])
        if found:
            self._between = after[-MAX_BETWEEN:]
            self.reached()

    def reached(self) -> None:
        """The end of what the sink gets; what was held back, because it could have been the fence, belongs to it."""
        on_fence, self._on_fence = self._on_fence, None
        if on_fence:
            if self._sink:
                self._sink(self._held)
            on_fence()

    def close(self) -> None:
        self.detach()
        self._loop.forget(self.master)
        os.close(self.master)
        os.close(self.slave)
