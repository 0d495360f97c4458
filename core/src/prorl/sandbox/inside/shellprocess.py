"""One bash, for as long as it lives: its pty, the pipe its script comes through, the pipe it reports on.

The shell is not interactive. It reads its script from a pipe, a few lines per command: source the command from a memfd,
then report exit code and directory on a descriptor of their own, beside a nonce. The pty carries output alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping

from . import tree
from .child import COMMAND_FD, CONTROL_FD, STATUS_FD, spawn
from .loop import Loop
from .terminal import Terminal

BASH = "/bin/bash"
MAX_STATUS = 64 * 1024
SUBSTITUTIONS = (b"$(", b"<(", b">(")
SYNTAX_ERROR = 2
READY = b"ready\0"

# Output of the lines themselves (set -x, set -v) goes to /dev/null; `return` in the INT trap leaves the sourced file,
# so that the shell and its state outlive an interrupt.
SETUP = f"exec {CONTROL_FD}<&-\nprintf 'ready\\0' >&{STATUS_FD}\n"
# A line of its own first: whatever the agent wrote into our pipe through /proc ends there.
LINES = f"""
{{ builtin trap 'return 130' INT; }} 2>/dev/null
{{ builtin . /dev/fd/{COMMAND_FD} <STDIN >/dev/tty 2>&1 {STATUS_FD}>&-; }} 2>/dev/null
{{ builtin printf '%s\\0' NONCE "$?" "$PWD" >&{STATUS_FD}; }} 2>/dev/null
"""


class ShellProcess:
    """``on_report(exit code, directory)`` when a command is over, ``on_exit(wait status)`` when the shell is.

    ``ready`` says that it has come up: before that it has run nothing of the agent's.
    """

    def __init__(
        self,
        loop: Loop,
        env: Mapping[str, str],
        directory: str,
        *,
        cpu_s: int | None,
        on_report: Callable[[int, str], None],
        on_exit: Callable[[int], None],
    ) -> None:
        self._loop = loop
        self._env = env
        self._directory = directory
        self._on_report = on_report
        self._on_exit = on_exit
        self._nonce = b""
        self._status = b""
        self.ready = False
        self.checker = 0
        self.terminal = Terminal(loop)
        slave = self.terminal.open_slave()
        control, self._control = os.pipe()
        self._report, report = os.pipe()
        self._command = os.memfd_create("command")
        fds = {0: slave, 1: slave, 2: slave, CONTROL_FD: control, STATUS_FD: report, COMMAND_FD: self._command}
        argv = [BASH, "--noprofile", "--norc", f"/dev/fd/{CONTROL_FD}"]
        try:
            self.pid = spawn(argv, env, fds, directory, cpu_s=cpu_s, controlling_terminal=True)
        except OSError:
            self.terminal.close()
            for fd in (self._control, self._report, self._command):
                os.close(fd)
            raise
        finally:
            for fd in (slave, control, report):
                os.close(fd)
        os.set_blocking(self._report, False)
        os.write(self._control, SETUP.encode())
        loop.watch(self._report, self._read_report, None)
        loop.on_exit(self.pid, self._exited)

    def run(self, command: bytes, *, stdin: str) -> None:
        """Have it source ``command`` with ``stdin`` (a path). Raises ``OSError`` when no process is to be had."""
        self._nonce = os.urandom(16).hex().encode()
        self._status = b""
        self._lines = LINES.encode().replace(b"NONCE", self._nonce).replace(b"STDIN", stdin.encode())
        self.terminal.reset()
        os.ftruncate(self._command, 0)
        os.pwrite(self._command, command, 0)
        if any(opening in command for opening in SUBSTITUTIONS):
            self._check()
        else:
            self._send()

    def _check(self) -> None:
        """Let another bash parse the command first: an unbalanced substitution corrupts the memory of bash 5.2."""
        slave = self.terminal.open_slave()
        argv = [BASH, "--norc", "-O", "extglob", "-n", f"/dev/fd/{COMMAND_FD}"]
        try:
            fds = {0: slave, 1: slave, 2: slave, COMMAND_FD: self._command}
            self.checker = spawn(argv, self._env, fds, self._directory)
        finally:
            os.close(slave)
        nonce = self._nonce

        def checked(status: int) -> None:
            self.checker = 0
            if nonce and nonce == self._nonce:
                if status == 0:
                    self._send()
                else:
                    self._over(SYNTAX_ERROR, "")

        self._loop.on_exit(self.checker, checked)

    def _send(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has just died: its exit callback ends the command
            os.write(self._control, self._lines)

    def drop(self) -> None:
        """The command is to end: if it is still being checked, it never begins."""
        if self.checker:
            self._over(130, "")

    def _read_report(self) -> None:
        try:
            data = os.read(self._report, MAX_STATUS)
        except BlockingIOError:
            return
        if not data:
            self._loop.forget(self._report)
        self._status = (self._status + data)[-MAX_STATUS:]
        if not self.ready and self._status.startswith(READY):
            self.ready = True
        if not self._nonce:
            return
        _, found, report = self._status.rpartition(self._nonce + b"\0")
        fields = report.split(b"\0")
        if found and len(fields) >= 3:
            code = int(fields[0]) if fields[0].isdigit() else -1
            self._over(code, fields[1].decode("utf-8", "replace"))

    def _over(self, code: int, directory: str) -> None:
        self._nonce = b""
        self._on_report(code, directory)

    def _exited(self, status: int) -> None:
        self._read_report()  # it may have reported before it died
        self.pid = 0
        self._nonce = b""
        self._on_exit(status)

    def interrupt(self) -> None:
        self.terminal.interrupt()
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGINT)

    def kill(self) -> None:
        if self.pid:
            tree.signal_tree(self.pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """After its end."""
        self.terminal.close()
        self._loop.forget(self._report)
        for fd in (self._control, self._report, self._command):
            os.close(fd)
