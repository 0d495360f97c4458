"""The process that runs IPython cells, and nothing else: one shell, one cell at a time.

It prints to descriptors 1 and 2, which the action server reads; `python -u` keeps what a subprocess prints from
overtaking what the cell printed. Cells and their ends travel as frames on ``fd``. The
agent's code shares this process, so the server believes nothing of what comes back but its form.
"""

from __future__ import annotations

import builtins
import os
import signal
import socket
import sys
from typing import Any, NoReturn

from . import frames

NO_INPUT = "input() has no one to answer it here: put the value into the code instead"


def _no_input(*_: object) -> NoReturn:
    raise RuntimeError(NO_INPUT)


def make_shell() -> Any:
    """An InteractiveShell with plain text for results, no history file, and subprocesses on our own descriptors."""
    from IPython.core.displayhook import DisplayHook  # noqa: PLC0415
    from IPython.core.interactiveshell import InteractiveShell  # noqa: PLC0415
    from traitlets.config import Config  # noqa: PLC0415

    class PlainDisplayHook(DisplayHook):  # type: ignore[misc, unused-ignore]
        def write_output_prompt(self) -> None:
            """The agent wants the value, not `Out[1]: `."""

    class Shell(InteractiveShell):
        displayhook_class = PlainDisplayHook
        system = InteractiveShell.system_raw

        def enable_gui(self, gui: str | None = None) -> None:
            """There is no screen."""

    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "NoColor"
    config.InteractiveShell.banner1 = ""
    config.InteractiveShell.separate_in = ""
    shell: Any = Shell.instance(config=config)
    builtins.input = _no_input
    return shell


def run_cell(shell: Any, code: str) -> dict[str, Any]:
    result = shell.run_cell(code, store_history=True)
    error = result.error_before_exec or result.error_in_exec
    sys.stdout.flush()
    sys.stderr.flush()
    return {"raised": type(error).__name__ if error is not None else None}


def main(fd: int) -> None:
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt that comes between two cells is too late
    sys.path[:] = ["", *(path for path in sys.path if path != os.environ["PRORL_INSIDE"])]
    del os.environ["PRORL_INSIDE"]
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        shell = make_shell()
    except BaseException as error:
        sock.sendall(frames.pack_json(frames.HELLO, 0, {"error": f"{type(error).__name__}: {error}"}))
        return
    sock.sendall(frames.pack_json(frames.HELLO, 0, {"error": None}))
    reader = frames.FrameReader()
    while True:
        data = sock.recv(65536)
        if not data:
            return
        for frame in reader.feed(data):
            code = frames.unpack_json(frame.payload)["code"]
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                end = run_cell(shell, code)
            except KeyboardInterrupt:
                end = {"raised": "KeyboardInterrupt"}
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            sock.sendall(frames.pack_json(frames.END, frame.request, end))
