"""The processes that run IPython cells, and nothing else.

A zygote makes the shell and waits; a worker forked from it runs one cell at a time. The worker prints to descriptors 1
and 2, which the action server reads; `python -u` keeps what a subprocess prints from overtaking what the cell printed.
Cells and their ends travel as frames. The agent's code shares the worker, so the server believes nothing of what comes
back but its form.

jupyter_client would bring nothing here: a kernel of it takes 1 s to start, 51 MiB and 8 ms a cell (0.7 ms this way),
and its interrupts, restarts and rich results are these.
"""

from __future__ import annotations

import array
import builtins
import gc
import os
import signal
import socket
import sys
import warnings
from typing import Any, NoReturn

from . import frames
from .rich import SUFFIXES, Images

NO_INPUT = "input() has no one to answer it here: put the value into the code instead"


def _no_input(*_: object) -> NoReturn:
    raise RuntimeError(NO_INPUT)


def make_shell(images: Images) -> Any:
    """An InteractiveShell with plain text and image files for results, no history file, and subprocesses on our own
    descriptors.
    """
    from IPython.core.displayhook import DisplayHook  # noqa: PLC0415
    from IPython.core.displaypub import DisplayPublisher  # noqa: PLC0415
    from IPython.core.interactiveshell import InteractiveShell  # noqa: PLC0415
    from traitlets.config import Config  # noqa: PLC0415

    class PlainDisplayHook(DisplayHook):  # type: ignore[misc, unused-ignore]
        def write_output_prompt(self) -> None:
            """The agent wants the value, not `Out[1]: `."""

        def write_format_data(self, format_dict: dict[str, Any], md_dict: Any = None) -> None:
            if not images.show(format_dict) and "text/plain" in format_dict:
                print(format_dict["text/plain"])  # noqa: T201

    class FilePublisher(DisplayPublisher):  # type: ignore[misc, unused-ignore]
        def publish(self, data: dict[str, Any], *args: Any, **more: Any) -> None:
            if not images.show(data) and "text/plain" in data:
                print(data["text/plain"])  # noqa: T201

        def clear_output(self, wait: bool = False) -> None:
            """What was printed stays printed."""

    class Shell(InteractiveShell):
        displayhook_class = PlainDisplayHook
        display_pub_class = FilePublisher
        system = InteractiveShell.system_raw

        def enable_gui(self, gui: str | None = None) -> None:
            """There is no screen."""

    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "NoColor"
    config.InteractiveShell.banner1 = ""
    config.InteractiveShell.separate_in = ""
    shell: Any = Shell.instance(config=config)
    shell.display_formatter.active_types = ["text/plain", *SUFFIXES]
    builtins.input = _no_input
    warnings.filterwarnings("ignore", message=".*FigureCanvasAgg is non-interactive")
    return shell


def run_cell(shell: Any, images: Images, code: str) -> dict[str, Any]:
    images.begin_cell()
    result = shell.run_cell(code, store_history=True)
    error = result.error_before_exec or result.error_in_exec
    images.show_figures()
    sys.stdout.flush()
    sys.stderr.flush()
    return {"raised": type(error).__name__ if error is not None else None}


def serve(sock: socket.socket, shell: Any, images: Images) -> None:
    """The worker: cells until the server closes its end."""
    reader = frames.FrameReader()
    while True:
        data = sock.recv(65536)
        if not data:
            return
        for frame in reader.feed(data):
            code = frames.unpack_json(frame.payload)["code"]
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                end = run_cell(shell, images, code)
            except KeyboardInterrupt:
                end = {"raised": "KeyboardInterrupt"}
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            sock.sendall(frames.pack_json(frames.END, frame.request, end))


def fork_worker(fds: array.array[int]) -> tuple[int, bool]:
    """``(its pid, False)`` in the zygote, ``(0, True)`` in the worker, whose parent is the server: we fork twice."""
    told, telling = os.pipe()
    between = os.fork()
    if between:
        os.close(telling)
        with os.fdopen(told, "rb") as stream:
            pid = int(stream.read())
        os.waitpid(between, 0)
        return pid, False
    pid = os.fork()
    if pid:
        os.write(telling, str(pid).encode())
        os._exit(0)
    os.close(told)
    os.close(telling)
    os.setsid()
    os.dup2(fds[1], 1)
    os.dup2(fds[1], 2)
    os.close(fds[1])
    return 0, True


def main(fd: int) -> None:
    """The zygote. Returns, in a worker, when the server has closed that worker's connection."""
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt that comes between two cells is too late
    sys.path[:] = ["", *(path for path in sys.path if path != os.environ["PRORL_INSIDE"])]
    del os.environ["PRORL_INSIDE"]
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    images = Images(os.getcwd())  # noqa: PTH109
    try:
        shell = make_shell(images)
        shell.run_cell("None", silent=True)  # what IPython puts off until its first cell
    except BaseException as error:
        sock.sendall(frames.pack_json(frames.HELLO, 0, {"error": f"{type(error).__name__}: {error}"}))
        return
    gc.collect()
    gc.freeze()  # collections in the workers would otherwise write to every page they share
    sock.sendall(frames.pack_json(frames.HELLO, 0, {"error": None}))
    while True:
        fds = array.array("i")
        asked, ancillary, _, _ = sock.recvmsg(1, socket.CMSG_SPACE(2 * fds.itemsize))
        if not asked:
            return
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        pid, is_worker = fork_worker(fds)
        if is_worker:
            sock.close()
            connection = socket.socket(fileno=fds[0])
            connection.set_inheritable(False)
            serve(connection, shell, images)
            return
        for each in fds:
            os.close(each)
        sock.sendall(frames.pack_json(frames.HELLO, 0, {"pid": pid}))
