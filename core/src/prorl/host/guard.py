"""A process that ends another one's whole tree, whatever happens to the server that wanted it.

It starts a command, and when that ends, or the server closes its end of a pipe (as the kernel does for one that was
killed), everything below it is killed, daemons that left their session too, and the paths it was given are removed. It
keeps the locks it inherited until then, so that nobody takes over from one that is still writing.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from prorl.host.remove import remove_tree
from prorl.sandbox.inside import confine, tree

SOURCES = Path(__file__).parents[2]
BOOT = f"import sys; sys.path.insert(0, {str(SOURCES)!r}); from prorl.host.guard import main; main(sys.argv)"
REAP_WITHIN = 5.0


def command(argv: Sequence[str], *, watched: int, remove: Sequence[Path] = ()) -> list[str]:
    """The command line that runs ``argv`` guarded. ``watched`` is the reading end of the server's pipe."""
    return [sys.executable, "-I", "-S", "-c", BOOT, str(watched), *map(str, remove), "--", *argv]


def main(argv: list[str]) -> None:
    at = argv.index("--")
    watched, remove = int(argv[1]), argv[2:at]
    confine.adopt_orphans()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a Ctrl-C at the server is the server's to act upon
    try:
        process = subprocess.Popen(argv[at + 1 :], stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        print(f"cannot start {argv[at + 1]}: {error.strerror}", file=sys.stderr)  # noqa: T201
        os._exit(127)
    pidfd = os.pidfd_open(process.pid)
    select.select([watched, pidfd], [], [])
    code = process.poll()
    tree.signal_tree(os.getpid(), signal.SIGKILL)
    _reap()
    for path in remove:
        remove_tree(Path(path))
    # As a shell puts it; our own end says how the command ended.
    os._exit(137 if code is None else code if code >= 0 else 128 - code)


def _reap() -> None:
    """Wait until nothing is left below us: only then may a lock of ours go."""
    deadline = time.monotonic() + REAP_WITHIN
    while time.monotonic() < deadline:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            tree.signal_tree(os.getpid(), signal.SIGKILL)
            time.sleep(0.005)
