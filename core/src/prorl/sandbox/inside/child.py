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
    """Fork and exec. ``fds`` maps the child's descriptor numbers to ours; with a controlling terminal it is on 0.

    Raises ``OSError`` for whatever goes wrong before the program runs, so that no exit code of it is ever ours.
    """
    failed, failing = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(failed)
        os.close(failing)
        raise
    if pid == 0:
        try:
            failing = fcntl.fcntl(failing, fcntl.F_DUPFD_CLOEXEC, COMMAND_FD + 1)
            _prepare({**fds, failing: failing}, controlling_terminal)
            os.chdir(directory)
            limit_cpu(cpu_s)
            os.execve(argv[0], list(argv), dict(env))  # noqa: S606
        except BaseException as error:
            os.write(failing, f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
        finally:
            os._exit(127)
    os.close(failing)
    with open(failed, "rb") as stream:  # noqa: PTH123
        problem = stream.read(4096)  # nothing, as soon as the program runs
    if problem:
        os.waitpid(pid, 0)
        raise OSError(f"cannot start {argv[0]}: {problem.decode('utf-8', 'replace')}")
    return pid


def _prepare(fds: Mapping[int, int], controlling_terminal: bool) -> None:
    """A session of its own, default signals, and no descriptors but these."""
    os.setsid()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    # Ours first out of the way of the targets, so that no dup2 closes a source that is still to come.
    others = [(target, source) for target, source in fds.items() if target != source]
    moved = {target: fcntl.fcntl(source, fcntl.F_DUPFD, COMMAND_FD + 1) for target, source in others}
    for target, source in moved.items():
        os.dup2(source, target, inheritable=True)
    for fd in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
        if fd not in fds:
            with contextlib.suppress(OSError):
                os.close(fd)
    if controlling_terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)


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
