"""A persistent bash on a pty that no command can wedge, and none can fool about where it ends.

The shell is not interactive. It reads its script from a pipe, a few lines per action: source the command from a memfd
with stdin from /dev/null, then report exit code and directory on a descriptor of their own, beside a nonce. The pty
carries output alone, and a random fence, written by the server once the report has come, marks its end.

::

    timeout or cancel:  SIGINT (the shell's trap returns from the command) -> SIGTERM, then SIGKILL to what the action
                        started -> SIGKILL to the shell, and a new one: "state lost"
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
from collections.abc import Callable, Mapping

from . import tree
from .action import Action, argument
from .child import COMMAND_FD, CONTROL_FD, STATUS_FD, describe_exit, exit_code, spawn
from .loop import Loop, Timer
from .terminal import Terminal

BASH = "/bin/bash"
MAX_STATUS = 64 * 1024
INTERRUPTS_AT = (0.0, 0.1, 0.2, 0.3, 0.4)  # each returns from one more function of the command
TERMINATE_AT = 0.6
KILL_AT = 1.0
KILL_SHELL_AT = 1.3
SETTLE = 1.0
SUBSTITUTIONS = (b"$(", b"<(", b">(")
SYNTAX_ERROR = 2

# Output of the lines themselves (set -x, set -v) goes to /dev/null; `return` in the INT trap leaves the sourced file,
# so that the shell and its state outlive an interrupt.
SETUP = f"exec {CONTROL_FD}<&-\n"
# A line of its own first: whatever the agent wrote into our pipe through /proc ends there.
LINES = f"""
{{ builtin trap 'return 130' INT; }} 2>/dev/null
{{ builtin . /dev/fd/{COMMAND_FD} </dev/null >/dev/tty 2>&1 {STATUS_FD}>&-; }} 2>/dev/null
{{ builtin printf '%s\\0' NONCE "$?" "$PWD" >&{STATUS_FD}; }} 2>/dev/null
"""


class Shell:
    """At most one action at a time; a shell that died is replaced when the next one comes.

    ``beside`` names the server's other children, which an action's end must not touch.
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
        self._env = env
        self._workdir = self._cwd = workdir
        self._cpu_s = cpu_s
        self._beside = beside
        self._action: Action | None = None
        self._timers: list[Timer] = []
        self._terminal: Terminal | None = None
        self._checker = 0
        self.pid = 0

    def start(self, action: Action) -> None:
        command = argument(action.arguments, "command", str).encode("utf-8", "replace")
        if argument(action.arguments, "is_input", bool, False):
            self._input(action, command)
        elif not os.access(BASH, os.X_OK):
            action.finish("error", error=f"this sandbox has no {BASH}")
        else:
            self._run(action, command)

    @property
    def busy(self) -> bool:
        return self._action is not None

    @property
    def pids(self) -> list[int]:
        """The children of the server that are this lane's own."""
        return [pid for pid in (self.pid, self._checker) if pid]

    def cancel(self, action: Action) -> None:
        if action is self._action:
            self._end("cancelled")

    def pause(self) -> None:
        if self._terminal:
            self._terminal.pause()

    def resume(self) -> None:
        if self._terminal:
            self._terminal.resume()

    def _run(self, action: Action, command: bytes) -> None:
        terminal = self._terminal or self._spawn()
        self._action = action
        self._outcome = "ok"
        self._note: str | None = None
        self._exit: int | None = None
        self._nonce = secrets.token_hex(16).encode()
        self._status = b""
        self._after(action.timeout, lambda: self._end("timeout"))
        terminal.attach(action.emit)
        try:
            terminal.reset()
            os.ftruncate(self._command, 0)
            os.pwrite(self._command, command, 0)
            if any(opening in command for opening in SUBSTITUTIONS):
                self._check(terminal)
            else:
                self._send()
        except OSError:  # no process to be had, a limit on files: the caller says so, and the shell is free again
            self._action = None
            self._clear_timers()
            terminal.detach()
            raise

    def _check(self, terminal: Terminal) -> None:
        """Let another bash parse the command first: an unbalanced substitution corrupts the memory of bash 5.2."""
        slave = terminal.open_slave()
        argv = [BASH, "--norc", "-O", "extglob", "-n", f"/dev/fd/{COMMAND_FD}"]
        try:
            fds = {0: slave, 1: slave, 2: slave, COMMAND_FD: self._command}
            self._checker = spawn(argv, self._env, fds, self._workdir)
        finally:
            os.close(slave)
        self._loop.on_exit(self._checker, self._on_checked)

    def _on_checked(self, status: int) -> None:
        self._checker = 0
        if self._action and self._exit is None:
            if status == 0 and self._outcome == "ok":
                self._send()
            else:
                self._exit = SYNTAX_ERROR
                self._settle()

    def _send(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has just died: its exit callback ends the action
            os.write(self._control, LINES.encode().replace(b"NONCE", self._nonce))

    def _input(self, action: Action, text: bytes) -> None:
        """Commands have no stdin: this reaches those that ask the terminal itself (/dev/tty)."""
        if not self._action or not self._terminal:
            action.finish("error", error="no command is running that could take input")
        elif text.strip().lower() in (b"c-c", b"^c", b"ctrl+c"):
            self._interrupt()
            action.finish("ok")
        else:
            left = len(text) - self._terminal.write(text)
            action.finish("error" if left else "ok", error=f"{left} bytes did not fit" if left else None)

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

    def _interrupt(self) -> None:
        if self._terminal:
            self._terminal.interrupt()
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGINT)

    def _signal_started(self, number: int) -> None:
        if self._action:
            tree.signal_tree(os.getpid(), number, self._action.since, through=[self.pid], beside=self._beside())

    def _kill_shell(self) -> None:
        if self.pid:
            self._note = "The shell did not yield and was killed."
            tree.signal_tree(self.pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    # -- the shell

    def _spawn(self) -> Terminal:
        terminal = Terminal(self._loop)
        slave = terminal.open_slave()
        control, self._control = os.pipe()
        self._report, report = os.pipe()
        self._command = os.memfd_create("command")
        fds = {0: slave, 1: slave, 2: slave, CONTROL_FD: control, STATUS_FD: report, COMMAND_FD: self._command}
        argv = [BASH, "--noprofile", "--norc", f"/dev/fd/{CONTROL_FD}"]
        directory = self._cwd if os.access(self._cwd, os.X_OK) else self._workdir
        try:
            self.pid = spawn(argv, self._env, fds, directory, cpu_s=self._cpu_s, controlling_terminal=True)
        except OSError:
            terminal.close()
            for fd in (self._control, self._report, self._command):
                os.close(fd)
            raise
        finally:
            for fd in (slave, control, report):
                os.close(fd)
        os.set_blocking(self._report, False)
        os.write(self._control, SETUP.encode())
        self._loop.watch(self._report, self._on_report, None)
        self._loop.on_exit(self.pid, self._on_exit)
        self._terminal = terminal
        return terminal

    def _on_report(self) -> None:
        try:
            data = os.read(self._report, MAX_STATUS)
        except BlockingIOError:
            return
        if not data:
            self._loop.forget(self._report)
        if not self._action or self._exit is not None:
            return
        self._status = (self._status + data)[-MAX_STATUS:]
        _, found, report = self._status.rpartition(self._nonce + b"\0")
        fields = report.split(b"\0")
        if found and len(fields) >= 3:
            self._exit = int(fields[0]) if fields[0].isdigit() else -1
            self._cwd = fields[1].decode("utf-8", "replace")
            self._settle()

    def _on_exit(self, status: int) -> None:
        self._on_report()  # it may have reported before it died
        self.pid = 0
        if not self._action:
            self._release()
            return
        self._note = f"{self._note or f'The shell ended ({describe_exit(status)}).'} Its state is lost."
        if self._exit is None:
            self._exit = exit_code(status)
            self._settle()

    def _settle(self) -> None:
        """The command is over: end what a timeout or cancel left of it, then read the rest of its output."""
        self._clear_timers()
        if self._outcome != "ok":
            self._signal_started(signal.SIGKILL)
        if self._terminal:
            self._after(SETTLE, self._give_up)
            self._terminal.settle(self._finish)

    def _give_up(self) -> None:
        """Something in the background floods the pty, so the fence is late."""
        if self._terminal and self._terminal.paused:
            self._after(SETTLE, self._give_up)  # no, the host is slow to take the output
        elif self._terminal:
            self._terminal.reached()

    def _finish(self) -> None:
        self._clear_timers()
        action, self._action = self._action, None
        if self._terminal:
            self._terminal.detach()
        if not self.pid:
            self._release()
        if action:
            data = {"exit_code": self._exit, "cwd": self._cwd, "state_lost": not self.pid}
            action.finish(self._outcome, data, self._note)

    def _release(self) -> None:
        if self._terminal:
            self._terminal.close()
            self._terminal = None
            self._loop.forget(self._report)
            for fd in (self._control, self._report, self._command):
                os.close(fd)

    def _after(self, seconds: float, callback: Callable[[], None]) -> None:
        self._timers.append(self._loop.later(seconds, callback))

    def _clear_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
