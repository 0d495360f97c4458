"""A process of tests: the reporter and all that runs tests are loaded before anything of the repository can be.

Started as ``python -c BOOT FOLDER FD``. What it is to do, and the secret word, come through the descriptor.
"""

# Python 3.6, and no module whose import costs time or could be another's
# ruff: noqa: UP006, UP045, PLC0415, PTH109, PTH120, PTH100
import json
import os
import runpy
import socket
import sys
import typing

from . import by_unittest
from .channel import sender, take
from .guard import Guard
from .origin import Origin

Request = typing.Dict[str, typing.Any]


def main(folder: str, fd: int) -> None:
    os.set_inheritable(fd, False)
    channel = socket.socket(fileno=fd)
    request: Request = json.loads(take(channel).decode())
    channel.detach()
    send = sender(fd, request["word"])
    send({"event": "begun"})
    origin = Origin(request["changed"], request["contents"], request["worktree"])
    guard = Guard(origin, lambda what: send({"event": "tampering", "what": what}))
    check = guard.check
    program = request["program"]
    sys.argv = [program["script"] or "pytest", *program["arguments"]]
    if program["script"]:
        code = _script(folder, program["script"], guard, send, request["done"])
    else:
        code = _pytest(folder, program, request, guard, send)
    if not by_unittest.still_fails():
        send({"event": "tampering", "what": "unittest no longer fails what can only fail"})
    check()
    send({"event": "end", "code": code})
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # whatever is registered to run at exit comes too late


def _pytest(folder: str, program: Request, request: Request, guard: Guard, send: typing.Any) -> int:
    import unittest.mock  # noqa: F401 - what is imported now cannot be another's later

    from . import by_pytest

    _settle_path(folder, os.getcwd() if program["as_module"] else None)
    arguments = list(program["arguments"])
    if _has("xdist"):
        arguments += ["-n", "0"]
    guard.watch()
    return by_pytest.run(arguments, request, guard, send)


def _script(folder: str, script: str, guard: Guard, send: typing.Any, done: typing.List[str]) -> int:
    hooked = by_unittest.hook(guard, send, done)
    _settle_path(folder, os.path.dirname(os.path.abspath(script)))
    guard.watch()
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    finally:
        hooked.silent = True
    return 0


def _settle_path(folder: str, first: typing.Optional[str]) -> None:
    """Where Python looks first, as it would be had it been started the usual way."""
    sys.path[:] = ([] if first is None else [first]) + [path for path in sys.path if path != folder]


def _has(module: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(module) is not None
