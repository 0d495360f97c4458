"""The action server: one connection, frames in, actions out.

It is given a connected socket by number. The first frame says who to become, where to work and within what limits;
nothing of the agent's has run before that. When the connection ends, for whatever reason, everything below the server
is killed and it exits.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from . import confine, tree
from .action import Action, BadArgumentsError, argument
from .bash import Shell
from .editor import Editor
from .files import Files
from .frames import (
    BYE,
    CANCEL,
    END,
    FAULT,
    HELLO,
    INPUT,
    OUTPUT,
    PROTOCOL,
    START,
    Frame,
    FrameReader,
    ProtocolError,
    pack,
    pack_json,
    unpack_json,
)
from .ipython import Kernel
from .loop import Loop
from .spill import Spill
from .transfer import Transfer

HIGH_WATER = 256 * 1024  # bytes for the host that may wait before commands are no longer read
MAX_ACTIONS = 64
REAP_WITHIN = 0.5
TOKEN_HALF = 32
MAX_TIMEOUT = 7 * 86400.0


class Lane(Protocol):
    """What runs one action at a time."""

    @property
    def busy(self) -> bool: ...

    @property
    def pids(self) -> list[int]: ...

    def start(self, action: Action) -> None: ...

    def cancel(self, action: Action) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Server:
    def __init__(self, sock: socket.socket, token: str = "") -> None:
        self._socket = sock
        self._token = token
        self._loop = Loop()
        self._reader = FrameReader()
        self._unsent = bytearray()
        self._paused = False
        self._deaf = False
        self._gave_up = False
        self._actions: dict[int, tuple[Action, Lane | None]] = {}
        self._lanes: dict[str, Lane] = {}
        self._instant: dict[str, Callable[[Action], None]] = {}  # what takes no time, one after another
        self._waiting: deque[tuple[Action, Lane]] = deque()
        self._files: Files | None = None
        self._spill: Spill | None = None
        self._transfer: Transfer | None = None

    def run(self) -> None:
        self._socket.setblocking(False)
        self._watch()
        self._loop.run()
        # Not only children: orphans that called setsid are below us too, for we are a subreaper.
        tree.signal_tree(os.getpid(), signal.SIGKILL)
        deadline = time.monotonic() + REAP_WITHIN
        while self._loop.reap() and time.monotonic() < deadline:
            time.sleep(0.002)

    # -- the connection

    def _watch(self) -> None:
        on_readable = None if self._deaf else self._on_readable
        self._loop.watch(self._socket.fileno(), on_readable, self._flush if self._unsent else None)

    def _congest(self, congested: bool) -> None:
        """A transfer's child is behind: what the host sends stays with the host."""
        if congested != self._deaf:
            self._deaf = congested
            self._watch()

    def _on_readable(self) -> None:
        try:
            data = self._socket.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.stop()
            return
        try:
            for frame in self._reader.feed(data):
                self._take(frame)
        except ProtocolError as error:
            self._send(pack_json(FAULT, 0, {"message": str(error)}))
            self._gave_up = True
            self._loop.stop()

    def _send(self, frame: bytes) -> None:
        if self._gave_up:  # what still ends in this turn of the loop: the fault was the last frame
            return
        self._unsent += frame
        self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._loop.stop()
            return
        congested = len(self._unsent) > HIGH_WATER
        if congested != self._paused:
            self._paused = congested
            for lane in self._lanes.values():
                (lane.pause if congested else lane.resume)()
        self._watch()

    # -- frames

    def _take(self, frame: Frame) -> None:
        if self._files is None:
            if frame.type != HELLO:
                raise ProtocolError("the first frame must be a hello")
            self._hello(unpack_json(frame.payload))
        elif frame.type == START:
            self._start(frame.request, unpack_json(frame.payload))
        elif frame.type == CANCEL:
            action, lane = self._actions.get(frame.request, (None, None))
            if action and lane:
                self._cancel(action, lane)
        elif frame.type == INPUT:
            self._input(frame)
        elif frame.type == BYE:
            self._loop.stop()
        else:
            raise ProtocolError(f"frame type {frame.type} is not the host's to send")

    def _input(self, frame: Frame) -> None:
        action, _ = self._actions.get(frame.request, (None, None))
        if action and self._transfer:
            self._transfer.feed(action, frame.payload)

    def _hello(self, settings: dict[str, Any]) -> None:
        if settings.get("protocol") != PROTOCOL:
            raise ProtocolError(f"this server speaks protocol {PROTOCOL}")
        if self._token and settings.get("token") != self._token[:TOKEN_HALF]:
            raise ProtocolError("not authenticated")
        try:
            self._set_up(settings)
        except (OSError, BadArgumentsError) as error:
            raise ProtocolError(f"cannot set up the sandbox: {error}") from error
        who = {
            "protocol": PROTOCOL,
            "python": sys.version.split()[0],
            "uid": os.getuid(),
            "token": self._token[TOKEN_HALF:],
        }
        self._send(pack_json(HELLO, 0, who))

    def _set_up(self, settings: dict[str, Any]) -> None:
        limits = argument(settings, "limits", dict)
        workdir = argument(settings, "workdir", str)
        python = argument(settings, "python", str) or sys.executable
        env = dict(os.environ) if settings.get("image_env") else {}  # what an image says its programs need
        env.update((str(name), str(value)) for name, value in argument(settings, "env", dict).items())
        become(settings, limits)
        for directory in (workdir, env.get("HOME", workdir)):
            os.makedirs(directory, exist_ok=True)  # noqa: PTH103
        os.chdir(workdir)
        cpu_s = limits.get("cpu_s")
        shell = Shell(self._loop, env, workdir, cpu_s=cpu_s, beside=lambda: kernel.pids + self._own())
        kernel = Kernel(self._loop, env, workdir, python=python, cpu_s=cpu_s, beside=lambda: shell.pids + self._own())
        self._files = Files(workdir, settings.get("root"))
        self._transfer = Transfer(self._loop, env, self._files.resolve, self._congest)
        self._lanes = {"bash": shell, "ipython": kernel, "transfer": self._transfer}
        self._instant = {
            "read": self._files.read,
            "write": self._files.write,
            "edit": Editor(self._files).run,
            "warm": lambda action: action.finish("ok", {"ready": kernel.warm()}),
        }
        self._spill = Spill(env.get("TMPDIR") or "/tmp")  # noqa: S108 - inside, nobody else is there

    def _own(self) -> list[int]:
        return self._transfer.pids if self._transfer else []

    def _start(self, request: int, message: dict[str, Any]) -> None:
        if request in self._actions or len(self._actions) >= MAX_ACTIONS:
            raise ProtocolError(f"action {request} is under way, or too many are")
        try:
            name = argument(message, "action", str)
            action = self._action(request, message)
        except BadArgumentsError as error:
            self._send(pack_json(END, request, {"outcome": "error", "error": str(error)}))
            return
        lane = self._lanes.get(name)
        self._actions[request] = (action, lane)
        if lane and lane.busy and not action.arguments.get("is_input"):
            self._waiting.append((action, lane))
            return
        self._begin(action, lane, name)

    def _begin(self, action: Action, lane: Lane | None, name: str = "") -> None:
        action.begin()
        try:
            if lane:
                lane.start(action)
            elif name in self._instant:
                self._instant[name](action)
            else:
                action.finish("error", error=f"there is no action {name[:100]!r}")
        except (OSError, BadArgumentsError) as error:
            action.finish("error", error=str(error))

    def _cancel(self, action: Action, lane: Lane) -> None:
        if (action, lane) in self._waiting:
            self._waiting.remove((action, lane))
            action.finish("cancelled")
        else:
            lane.cancel(action)

    def _action(self, request: int, message: dict[str, Any]) -> Action:
        timeout = message.get("timeout")
        if not isinstance(timeout, (int, float)) or not timeout >= 0:  # this refuses NaN too
            raise BadArgumentsError("'timeout' must be a number of seconds")
        arguments = argument(message, "arguments", dict)
        on_output = self._stream if message.get("stream") else None
        return Action(
            request,
            arguments,
            min(float(timeout), MAX_TIMEOUT),
            on_output=on_output,
            on_end=self._end,
            spill=self._spill,
        )

    def _stream(self, request: int, data: bytes) -> None:
        self._send(pack(OUTPUT, request, data))

    def _end(self, request: int, end: dict[str, Any]) -> None:
        self._actions.pop(request, None)
        self._send(pack_json(END, request, end))
        for waiting in list(self._waiting):
            if not waiting[1].busy:
                self._waiting.remove(waiting)
                self._begin(*waiting)
                return


def become(settings: dict[str, Any], limits: dict[str, Any]) -> None:
    """Turn into the agent's user, within the limits; there is no way back."""
    if settings.get("uid") is not None:
        confine.drop_privileges(argument(settings, "uid", int), argument(settings, "gid", int))
    if settings.get("die_with_parent"):
        confine.die_with_parent()
    confine.limit(limits)
    confine.adopt_orphans()
    confine.hide()


def main(fd: int, token_fd: int = -1) -> None:
    """Serve on the connected socket ``fd``. Where ``token_fd`` is given, only to who knows the token in that pipe."""
    os.umask(0o022)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    token = ""
    if token_fd >= 0:
        with open(token_fd, "rb") as pipe:
            token = pipe.read(2 * TOKEN_HALF).decode("ascii", "replace")
        if len(token) < 2 * TOKEN_HALF:
            return
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    with contextlib.closing(sock):
        Server(sock, token).run()
