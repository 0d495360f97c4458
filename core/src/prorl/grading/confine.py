"""The doors of a grader's process that computes on what a model wrote, closed: it can only compute and answer.

An audit hook, which nothing can take away again, refuses what a grader of texts has no business with: compiling text
into code, starting processes, writing files, opening sockets, loading libraries. Should a parser ever lead a model's
words into ``eval``, the call ends in :class:`PermissionError` instead. Modules may still be imported, and may do at
import what they always do; functions that make code from fixed templates can be named as exceptions. It
guards against accidents of trusted code, and is no sandbox for hostile code.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable
from types import FrameType
from typing import Any

# Who may compile: an import, and traceback, which parses lines of source to point into them.
TRUSTED = frozenset({"<frozen importlib._bootstrap>", traceback.format_exc.__code__.co_filename})
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CLOSED = frozenset({
    "ctypes.dlopen",
    "os.chmod",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.kill",
    "os.killpg",
    "os.link",
    "os.mkdir",
    "os.posix_spawn",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.symlink",
    "os.system",
    "os.truncate",
    "pty.spawn",
    "socket.__new__",
    "socket.bind",
    "socket.connect",
    "subprocess.Popen",
})  # fmt: skip


def confine(may_compile: Iterable[str] = ()) -> None:
    """Close the doors of this process, for good. ``may_compile``: functions (``"module:name"``) that may compile."""
    sys.dont_write_bytecode = True
    exceptions = frozenset(may_compile)

    def guard(event: str, arguments: tuple[Any, ...]) -> None:
        if not (event in CLOSED or event == "compile" or (event == "open" and _writes(arguments[2]))):
            return
        frame = sys._getframe(1)  # noqa: SLF001 - inspect is too slow for a hook
        if event == "compile" and f"{frame.f_globals.get('__name__')}:{frame.f_code.co_name}" in exceptions:
            return
        if not _is_trusted(frame):
            raise PermissionError(f"a confined grader may not do this: {event}")

    sys.addaudithook(guard)


def _writes(flags: object) -> bool:
    return isinstance(flags, int) and bool(flags & WRITING)


def _is_trusted(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename in TRUSTED:
            return True
        frame = frame.f_back
    return False
