"""The server's handle on the process that has imported IPython and forks a worker whenever one is wanted.

Importing costs 0.1 to 0.3 s and 20 MiB; a fork of the result costs 7 ms and what it changes. So it is begun early where
cells are to be expected, and never where they are not. The worker is handed to us (we are its subreaper), so that its
end and its exit status are ours to see.
"""

from __future__ import annotations

import array
import os
import signal
import socket
from collections.abc import Callable, Mapping

from .child import spawn
from .frames import HELLO, FrameReader, ProtocolError, unpack_json
from .loop import Loop

INSIDE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
PACKAGE = __package__ or "inside"
START_LINE = "import os, sys; sys.path.insert(0, os.environ['PRORL_INSIDE']); from {}.worker import main; main(3)"


class Zygote:
    """``on_ready(error)`` once it can fork (or why it never will), ``on_worker(pid)`` per fork, ``on_exit()``."""

    def __init__(
        self,
        loop: Loop,
        env: Mapping[str, str],
        workdir: str,
        python: str,
        *,
        cpu_s: int | None,
        on_ready: Callable[[str | None], None],
        on_worker: Callable[[int], None],
        on_exit: Callable[[int], None],
    ) -> None:
        self._loop = loop
        self._on_ready = on_ready
        self._on_worker = on_worker
        self._on_exit = on_exit
        self._reader = FrameReader()
        self.ready = False
        self._socket, theirs = socket.socketpair()
        nothing = os.open(os.devnull, os.O_RDWR)
        argv = [python, "-I", "-u", "-c", START_LINE.format(PACKAGE)]
        try:
            fds = {0: nothing, 1: nothing, 2: nothing, 3: theirs.fileno()}
            self.pid = spawn(argv, {"MPLBACKEND": "Agg", **env, "PRORL_INSIDE": INSIDE}, fds, workdir, cpu_s=cpu_s)
        except OSError:
            self._socket.close()
            raise
        finally:
            theirs.close()
            os.close(nothing)
        self._socket.setblocking(False)
        loop.on_exit(self.pid, self._exited)
        loop.watch(self._socket.fileno(), self._read, None)

    def fork(self, sock: int, output: int) -> None:
        """Ask for a worker that speaks on ``sock`` and prints to ``output``. Raises ``OSError``."""
        fds = array.array("i", [sock, output])
        self._socket.sendmsg([b"f"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds.tobytes())])

    def kill(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)

    def _read(self) -> None:
        try:
            data = self._socket.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.forget(self._socket.fileno())
            self.kill()
            return
        try:
            for frame in self._reader.feed(data):
                self._take(unpack_json(frame.payload) if frame.type == HELLO else {})
        except ProtocolError:
            self.kill()

    def _take(self, value: dict[str, object]) -> None:
        error, pid = value.get("error"), value.get("pid")
        if isinstance(error, str):
            self._on_ready(error[:500])
        elif isinstance(pid, int) and not isinstance(pid, bool) and pid > 1:
            self._on_worker(pid)
        elif "error" in value:
            self.ready = True
            self._on_ready(None)
        else:
            raise ProtocolError("a frame that nobody waits for")

    def _exited(self, status: int) -> None:
        self.pid = 0
        self._read()  # what it said before it died
        self._loop.forget(self._socket.fileno())
        self._socket.close()
        self._on_exit(status)
