"""Starting a child of the action server: own session, default signals, named descriptors, nothing else inherited."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import termios
from collections.abc import Mapping, Sequence

from .confine import limit_cpu

CONTROL_FD = 250
STATUS_FD = 251
COMMAND_FD = 252


def spawn(
    argv: Sequence[str],
    env: Mapping[str, str],
    fds: Mapping[int, int],
    directory: str,
    *,
    cpu_s: int | None = None,
    controlling_terminal: bool = False,
) -> int:
    """Fork and exec. ``fds`` maps the child's descriptor numbers to ours; with a controlling terminal it is on 0."""
    pid = os.fork()
    if pid:
        return pid
    with contextlib.suppress(BaseException):
        os.setsid()
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        # Ours first out of the way of the targets, so that no dup2 closes a source that is still to come.
        safe = {target: fcntl.fcntl(source, fcntl.F_DUPFD, COMMAND_FD + 1) for target, source in fds.items()}
        for target, source in safe.items():
            os.dup2(source, target, inheritable=True)
        for fd in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
            if fd not in fds:
                with contextlib.suppress(OSError):
                    os.close(fd)
        if controlling_terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        os.chdir(directory)
        limit_cpu(cpu_s)
        os.execve(argv[0], list(argv), dict(env))  # noqa: S606
    os._exit(127)


def describe_exit(status: int) -> str:
    """``exit code 3`` or ``signal SIGKILL``, from a wait status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return f"signal {signal.Signals(number).name}"
        except ValueError:
            return f"signal {number}"
    return f"exit code {os.WEXITSTATUS(status)}"


def exit_code(status: int) -> int:
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
