"""The worker process: ``python -P -m prorl.grading.worker MODULE:FUNCTION FD PARENT MEMORY_MB DOORS [PRELOAD ...]``.

DOORS is ``free``, or ``confined`` and after commas the functions that may compile (:mod:`prorl.grading.confine`).

One function, called once per request frame, in a process that the pool may kill at any moment. Requests and replies
travel on an inherited socket, never on stdout: nothing that a grader prints is read by anybody, and a reply counts only
with the random id of its request. A frame is a big-endian u32 length and that many bytes of JSON.

Only the standard library is used here, so that a worker's start costs what its function costs.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import math
import os
import resource
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from typing import Any

from prorl.grading.confine import confine

HEADER = struct.Struct(">I")
PR_SET_PDEATHSIG = 1
CPU_SLACK_S = 5


def main(argv: list[str]) -> int:
    target, fd, parent, memory_mb, doors, *preload = argv
    connection = socket.socket(fileno=int(fd))
    connection.set_inheritable(False)  # a grandchild must not be able to answer
    die_with(int(parent))
    try:
        for module in preload:
            importlib.import_module(module)
        function = load(target)
    except BaseException as error:  # an import may raise anything, SystemExit included; the pool has to hear of it
        send(connection, {"ready": False, "error": describe(error)})
        return 1
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_AS, int(memory_mb) * 2**20)
    how, *may_compile = doors.split(",")
    if how == "confined":
        confine(may_compile)
    send(connection, {"ready": True})
    while (request := receive(connection)) is not None:
        allow_cpu(request["timeout"])
        send(connection, {"id": request["id"], **answer(function, request["payload"])})
    return 0


def answer(function: Callable[[dict[str, Any]], object], payload: dict[str, Any]) -> dict[str, Any]:
    """Call the function; whatever it does short of ending the process becomes a reply."""
    try:
        result = function(payload)
    except BaseException as error:  # graders raise TimeoutError-like BaseExceptions and SystemExit, too
        return {"error": describe(error), "traceback": traceback.format_exc(limit=-12)[-4000:]}
    if not isinstance(result, dict):
        return {"bad": f"the grader returned {type(result).__name__}, not a dict"}
    try:
        json.dumps(result, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return {"bad": f"the grader's dict is not JSON: {error}"}
    return {"result": result}


def load(target: str) -> Callable[[dict[str, Any]], object]:
    module, _, name = target.partition(":")
    function = getattr(importlib.import_module(module), name)
    if not callable(function):
        raise TypeError(f"{target} is not callable")
    return function  # type: ignore[no-any-return]


def die_with(parent: int) -> None:
    """Have the kernel kill this process when the server goes, even in the middle of a C loop that hears nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it went before we asked
        os._exit(1)


def limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    wanted = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (wanted, wanted))


def allow_cpu(seconds: float) -> None:
    """Move the soft CPU limit on for one more call: a second line of defence behind the pool's own deadline."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    soft = math.ceil(usage.ru_utime + usage.ru_stime + seconds) + CPU_SLACK_S
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:2000]


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    body = json.dumps(message, allow_nan=False).encode()
    connection.sendall(HEADER.pack(len(body)) + body)


def receive(connection: socket.socket) -> dict[str, Any] | None:
    """The next request, or None when the pool has closed its end."""
    header = read(connection, HEADER.size)
    body = header and read(connection, HEADER.unpack(header)[0])
    return json.loads(body) if body else None


def read(connection: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 2**16))
        if not part:
            return None
        parts += part
    return bytes(parts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
