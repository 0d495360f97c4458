"""A persistent bash that no command can wedge, and none can fool about where it ends.

A random fence, written to the pty by the server once the shell has reported, marks the end of a command's output. The
pty is the standard library's: ptyprocess would add a package that an image does not have, and 15 ms of import, for a
fork and an exec that must hand over named descriptors anyway.

::

    timeout or cancel:  SIGINT (the shell's trap returns from the command) -> SIGTERM, then SIGKILL to what the command
                        started -> SIGKILL to the shell, and a new one: "state lost"
    soft timeout:       nothing printed for so long: the action ends with exit code -1, the command goes on, and an
                        action with ``is_input`` feeds it and takes it up again. Its time runs only during actions.

A command reads from /dev/null, or from the terminal where the caller can feed it (``"stdin": "terminal"``).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

from . import tree
from .action import Action, BadArgumentsError, argument
from .child import describe_exit, exit_code
from .loop import Loop, Timer
from .shellprocess import BASH, ShellProcess

INTERRUPTS_AT = (0.0, 0.1, 0.2, 0.3, 0.4)  # each returns from one more function of the command
TERMINATE_AT = 0.6
KILL_AT = 1.0
KILL_SHELL_AT = 1.3
SETTLE = 1.0
MAX_BACKLOG = 64 * 1024
STARTS = 3  # of a shell that ends before it is up
# They ask the terminal itself for keys: leave at the end, and after one screen. What git would ask for, fails instead.
PAGERS = {
    "PAGER": "cat",
    "MANPAGER": "cat",
    "GIT_PAGER": "cat",
    "LESS": "-dEFRX",
    "MORE": "-e",
    "GIT_TERMINAL_PROMPT": "0",
}
STDIN = {"null": "/dev/null", "terminal": "/dev/tty"}
KEYS = {"c-c": b"", "^c": b"", "ctrl+c": b"", "c-d": b"\x04", "^d": b"\x04", "ctrl+d": b"\x04"}
STOP_KEYS = ("c-z", "^z", "ctrl+z")
NO_JOBS = (
    "C-z is of no use: this shell has no job control. End the command with C-c and start it again with & behind it."
)
STILL_RUNNING = "The previous command is still running: go on with is_input, or end it with C-c."


class Shell:
    """At most one command at a time; a shell that died is replaced when the next one comes.

    ``beside`` names the server's other children, which a command's end must not touch.
    """

    def __init__(
        self,
        loop: Loop,
        env: Mapping[str, str],
        workdir: str,
        *,
        cpu_s: int | None,
        beside: Callable[[], list[int]],
    ) -> None:
        self._loop = loop
        self._env = {**PAGERS, **env}
        self._workdir = self._cwd = workdir
        self._cpu_s = cpu_s
        self._beside = beside
        self._action: Action | None = None
        self._timers: list[Timer] = []
        self._process: ShellProcess | None = None
        self._command: bytes | None = None  # under way
        self._ended: tuple[str, dict[str, Any], str | None] | None = None  # while no action was there to hear of it
        self._backlog = b""
        self._next: Action | None = None

    @property
    def busy(self) -> bool:
        return self._action is not None or self._next is not None

    @property
    def pids(self) -> list[int]:
        """The children of the server that are this lane's own."""
        return [pid for pid in (self._process.pid, self._process.checker) if pid] if self._process else []

    def start(self, action: Action) -> None:
        command = argument(action.arguments, "command", str).encode("utf-8", "replace")
        self._soft = argument(action.arguments, "soft_timeout", (int, float), 0)
        if argument(action.arguments, "stdin", str, "null") not in STDIN:
            raise BadArgumentsError("'stdin' must be 'null' or 'terminal'")
        if argument(action.arguments, "is_input", bool, False):
            self._input(action, command)
        elif not os.access(BASH, os.X_OK):
            action.finish("error", error=f"this sandbox has no {BASH}")
        elif self._command is None:
            self._run(action, command)
        elif argument(action.arguments, "if_running", str, "end") == "refuse":
            data = {"exit_code": -1, "cwd": self._cwd, "state_lost": False, "running": True}
            action.finish("error", data, STILL_RUNNING)
        else:
            self._next = action
            self._end("cancelled")

    def cancel(self, action: Action) -> None:
        if action is self._action:
            self._end("cancelled")
        elif action is self._next:
            self._next = None
            action.finish("cancelled")

    def pause(self) -> None:
        if self._process:
            self._process.terminal.pause()

    def resume(self) -> None:
        if self._process:
            self._process.terminal.resume()

    # -- a command

    def _run(self, action: Action, command: bytes) -> None:
        process = self._process or self._spawn()
        self._outcome = "ok"
        self._note: str | None = None
        self._exit: int | None = None
        self._ended = None
        self._command = command
        self._since = action.since
        self._starts = 1
        self._stdin = STDIN[action.arguments.get("stdin", "null")]
        self._attach(action)
        try:
            process.run(command, stdin=self._stdin)
        except OSError:  # no process to be had, a limit on files: the caller says so, and the shell is free again
            self._action = self._command = None
            self._clear_timers()
            process.terminal.detach()
            raise

    def _input(self, action: Action, text: bytes) -> None:
        """Feed the command; when no other action is waiting for it, this one is from now on."""
        key = text.strip().lower().decode("latin-1")
        if self._ended:
            self._attach(action)
            self._finish_with(*self._ended)
        elif self._command is None or not self._process:
            action.finish("error", error="no command is running that could take input")
        elif key in STOP_KEYS:
            action.finish("error", error=NO_JOBS)
        else:
            if KEYS.get(key) == b"":
                self._process.interrupt()
                left = 0
            else:
                data = KEYS.get(key, text)
                left = len(data) - self._process.terminal.write(data)
            problem = f"{left} bytes of the input did not fit: nobody reads it" if left else None
            if self._action or problem:
                action.finish("error" if problem else "ok", error=problem)
            else:
                self._attach(action)

    def _attach(self, action: Action) -> None:
        self._action = action
        backlog, self._backlog = self._backlog, b""
        action.emit(backlog)
        if self._process:
            self._process.terminal.attach(self._take)
        self._after(action.timeout, lambda: self._end("timeout"))
        if self._soft > 0:
            self._heard = time.monotonic()
            self._after(self._soft, self._if_quiet)

    def _take(self, data: bytes) -> None:
        if self._action:
            self._heard = time.monotonic()
            self._action.emit(data)
        else:
            self._backlog = (self._backlog + data)[-MAX_BACKLOG:]

    def _if_quiet(self) -> None:
        left = self._heard + self._soft - time.monotonic()
        if left > 0:
            self._after(left, self._if_quiet)
        elif self._outcome == "ok" and self._exit is None:
            self._clear_timers()
            self._finish_with("ok", {"exit_code": -1, "cwd": self._cwd, "state_lost": False, "running": True}, None)

    # -- the way down

    def _end(self, outcome: str) -> None:
        if self._outcome != "ok" or self._exit is not None:
            return  # on the way already
        self._outcome = outcome
        for delay in INTERRUPTS_AT:
            self._after(delay, self._interrupt)
        self._after(TERMINATE_AT, lambda: self._signal_started(signal.SIGTERM))
        self._after(KILL_AT, lambda: self._signal_started(signal.SIGKILL))
        self._after(KILL_SHELL_AT, self._kill_shell)
        if self._process:
            self._process.drop()

    def _interrupt(self) -> None:
        if self._process:
            self._process.interrupt()

    def _signal_started(self, number: int) -> None:
        if self._command is not None and self._process:
            through = [pid for pid in (self._process.pid,) if pid]
            tree.signal_tree(os.getpid(), number, self._since, through=through, beside=self._beside())

    def _kill_shell(self) -> None:
        if self._process:
            self._note = "The shell did not yield and was killed."
            self._process.kill()

    # -- the shell

    def _spawn(self) -> ShellProcess:
        self._process = ShellProcess(
            self._loop,
            self._env,
            self._cwd if os.access(self._cwd, os.X_OK) else self._workdir,
            cpu_s=self._cpu_s,
            on_report=self._on_report,
            on_exit=self._on_exit,
        )
        return self._process

    def _on_report(self, code: int, directory: str) -> None:
        if self._command is None or self._exit is not None:
            return
        self._exit = code
        self._cwd = directory or self._cwd
        self._settle()

    def _on_exit(self, status: int) -> None:
        if self._command is None:
            self._release()
            return
        if self._exit is None and self._outcome == "ok" and self._process and not self._process.ready:
            if self._starts < STARTS:
                # It has run nothing yet (the loader failed, a moment without memory): another may fare better.
                self._starts += 1
                self._release()
                self._spawn().terminal.attach(self._take)
                self._process.run(self._command, stdin=self._stdin)
                return
            self._outcome = "error"
        self._note = f"{self._note or f'The shell ended ({describe_exit(status)}).'} Its state is lost."
        if self._exit is None:
            self._exit = exit_code(status)
            self._settle()

    def _settle(self) -> None:
        """The command is over: end what a timeout or cancel left of it, then read the rest of its output."""
        self._clear_timers()
        if self._outcome not in ("ok", "error"):
            self._signal_started(signal.SIGKILL)
        if self._process:
            self._after(SETTLE, self._give_up)
            self._process.terminal.settle(self._finish)

    def _give_up(self) -> None:
        """Something in the background floods the pty, so the fence is late."""
        if self._process and self._process.terminal.paused:
            self._after(SETTLE, self._give_up)  # no, the host is slow to take the output
        elif self._process:
            self._process.terminal.reached()

    def _finish(self) -> None:
        self._clear_timers()
        self._command = None
        lost = self._process is None or not self._process.pid
        if self._process:
            self._process.terminal.detach()
        if lost:
            self._release()
        self._finish_with(self._outcome, {"exit_code": self._exit, "cwd": self._cwd, "state_lost": lost}, self._note)

    def _finish_with(self, outcome: str, data: dict[str, Any], note: str | None) -> None:
        action, self._action = self._action, None
        following, self._next = self._next, None
        self._clear_timers()
        self._ended = None if action or following else (outcome, data, note)
        if action:
            action.finish(outcome, data, note)
        if following:
            try:
                following.begin()
                self._run(following, following.arguments["command"].encode("utf-8", "replace"))
            except OSError as error:
                following.finish("error", error=str(error))

    def _release(self) -> None:
        if self._process:
            self._process.close()
            self._process = None

    def _after(self, seconds: float, callback: Callable[[], None]) -> None:
        self._timers.append(self._loop.later(seconds, callback))

    def _clear_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
