"""The server's side of the IPython worker: have it forked when it is first needed, interrupt it, replace it.

::

    timeout or cancel:  SIGINT to the worker's group -> SIGKILL to what the cell started -> SIGKILL to the worker, and
                        a new one: "state lost"
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Mapping

from . import tree
from .action import Action, argument
from .child import describe_exit
from .frames import END, START, Frame, FrameReader, ProtocolError, pack_json, unpack_json
from .loop import Loop, Timer
from .zygote import Zygote

INTERRUPTS_AT = (0.0, 0.5)
KILL_STARTED_AT = 0.8
KILL_WORKER_AT = 1.5
CLOSED_GRACE = 0.3
MAX_DRAIN = 1 << 20


class Kernel:
    """At most one cell at a time. ``beside`` names the server's other children, which a cell's end must not touch."""

    def __init__(
        self,
        loop: Loop,
        env: Mapping[str, str],
        workdir: str,
        *,
        python: str,
        cpu_s: int | None,
        beside: Callable[[], list[int]],
    ) -> None:
        self._loop = loop
        self._env = env
        self._workdir = workdir
        self._cpu_s = cpu_s
        self._python = python
        self._beside = beside
        self._action: Action | None = None
        self._timers: list[Timer] = []
        self._socket: socket.socket | None = None
        self._output = -1
        self._outcome = "ok"
        self._note: str | None = None
        self._unsent = b""
        self._cell = 0
        self._zygote: Zygote | None = None
        self._broken: str | None = None
        self.pid = 0

    def warm(self) -> bool:
        """Begin what the first cell would have to wait for; says whether it is done. Raises ``OSError``."""
        if not self._zygote and not self.pid:
            self._broken = None
            self._zygote = Zygote(
                self._loop,
                self._env,
                self._workdir,
                self._python,
                cpu_s=self._cpu_s,
                on_ready=self._on_zygote,
                on_worker=self._on_worker,
                on_exit=self._on_zygote_exit,
            )
        return bool(self.pid or (self._zygote and self._zygote.ready))

    def start(self, action: Action) -> None:
        code = argument(action.arguments, "code", str)
        self._outcome = "ok"
        self._note = None
        if not self.pid:
            self._ask_for_worker()
        self._action = action
        self._cell += 1
        self._after(action.timeout, lambda: self._end("timeout"))
        # A cell is at most as long as a frame; what the socket does not take at once waits for it to be writable.
        self._unsent = pack_json(START, self._cell, {"code": code})
        if self.pid:
            self._send()

    @property
    def busy(self) -> bool:
        return self._action is not None

    @property
    def pids(self) -> list[int]:
        return [pid for pid in (self.pid, self._zygote.pid if self._zygote else 0) if pid]

    def cancel(self, action: Action) -> None:
        if action is self._action:
            self._end("cancelled")

    def pause(self) -> None:
        if self._output >= 0:
            self._loop.forget(self._output)

    def resume(self) -> None:
        if self._output >= 0:
            self._loop.watch(self._output, self._on_output, None)

    # -- the way down

    def _end(self, outcome: str) -> None:
        if self._outcome != "ok":
            return
        self._outcome = outcome
        for delay in INTERRUPTS_AT:
            self._after(delay, self._interrupt)
        self._after(KILL_STARTED_AT, self._kill_started)
        self._after(KILL_WORKER_AT, lambda: self._kill_worker("The interpreter did not yield and was killed."))

    def _interrupt(self) -> None:
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGINT)

    def _kill_started(self) -> None:
        if self._action:
            tree.signal_tree(os.getpid(), signal.SIGKILL, self._action.since, through=self.pids, beside=self._beside())

    def _kill_worker(self, note: str) -> None:
        self._note = self._note or note
        if self.pid:
            tree.signal_tree(self.pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        elif self._zygote:
            self._zygote.kill()

    # -- the worker

    def _ask_for_worker(self) -> None:
        if self.warm():
            self._fork()

    def _fork(self) -> None:
        ours, theirs = socket.socketpair()
        output, printed = os.pipe()
        try:
            if self._zygote:
                self._zygote.fork(theirs.fileno(), printed)
        except OSError:  # it has just died: its exit callback has another one made
            pass
        finally:
            theirs.close()
            os.close(printed)
        ours.setblocking(False)
        os.set_blocking(output, False)
        self._socket, self._output, self._reader = ours, output, FrameReader()

    def _on_zygote(self, error: str | None) -> None:
        if error is not None:
            self._broken = f"IPython does not work with {self._python}: {error}."
        elif self._action and not self.pid:
            self._fork()

    def _on_worker(self, pid: int) -> None:
        if not self._socket or self.pid:
            raise ProtocolError("a worker that nobody asked for")
        self.pid = pid
        self._loop.on_exit(pid, self._on_exit)
        self._loop.watch(self._socket.fileno(), self._on_frames, None)
        self.resume()
        self._send()

    def _on_zygote_exit(self, status: int) -> None:
        self._zygote = None
        if self.pid:
            return  # the worker does not need it
        self._release()
        if not self._action:
            return
        if self._broken:
            self._outcome = "error" if self._outcome == "ok" else self._outcome
            self._note = self._broken
        elif self._outcome == "ok":
            self._outcome = "error"
            self._note = f"The interpreter ended while it started ({describe_exit(status)})."
        self._finish({"raised": None})

    def _send(self) -> None:
        if not self._socket:
            return
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:  # it died: its exit callback ends the cell
            self._unsent = b""
        self._loop.watch(self._socket.fileno(), self._on_frames, self._send if self._unsent else None)

    def _on_frames(self) -> None:
        if not self._socket:
            return
        try:
            data = self._socket.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.forget(self._socket.fileno())
            # As a rule it is about to end, and how is better to know.
            self._after(CLOSED_GRACE, lambda: self._kill_worker("The interpreter closed its connection."))
            return
        try:
            for frame in self._reader.feed(data):
                self._take(frame)
        except ProtocolError as error:
            self._kill_worker(f"The interpreter spoke out of turn: {error}.")

    def _take(self, frame: Frame) -> None:
        value = unpack_json(frame.payload)
        if frame.type == END and self._action and frame.request == self._cell:
            raised = value.get("raised")
            self._finish({"raised": raised[:200] if isinstance(raised, str) else None})
        else:
            raise ProtocolError("a frame that nobody waits for")

    def _on_output(self) -> None:
        try:
            data = os.read(self._output, 65536)
        except BlockingIOError:
            return
        if not data:
            self._loop.forget(self._output)
        elif self._action:
            self._action.emit(data)

    def _on_exit(self, status: int) -> None:
        self._on_frames()  # what it said before it died
        self.pid = 0
        if self._action:
            self._note = f"{self._note or f'The interpreter ended ({describe_exit(status)}).'} Its state is lost."
        self._finish({"raised": None})
        self._release()

    def _finish(self, data: dict[str, str | None]) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        if not self._action:
            return
        if self._outcome != "ok":
            self._kill_started()
        self._drain()
        action, self._action = self._action, None
        action.finish(self._outcome, {**data, "state_lost": not self.pid}, self._note)

    def _drain(self) -> None:
        """A pipe holds what was written before the end came; a job left in the background may go on writing."""
        read = 0
        with contextlib.suppress(BlockingIOError):
            while read < MAX_DRAIN and self._action and self._output >= 0:
                data = os.read(self._output, 65536)
                if not data:
                    return
                read += len(data)
                self._action.emit(data)

    def _release(self) -> None:
        if self._socket:
            self._loop.forget(self._socket.fileno())
            self._loop.forget(self._output)
            self._socket.close()
            os.close(self._output)
            self._socket, self._output = None, -1

    def _after(self, seconds: float, callback: Callable[[], None]) -> None:
        self._timers.append(self._loop.later(seconds, callback))
