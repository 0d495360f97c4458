"""Notices from outside when the event loop is blocked, and by whom.

A thread looks at a beat that the loop should renew all the time. When it is overdue, the task that is running right now
is the culprit: handler calls carry the handler's name in their task's name; for a task that a handler started itself
the stack tells (a frame of the handler's module).
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from types import FrameType

from prorl.pipeline.handlers import BoundHandler

log = logging.getLogger("prorl.pipeline")
CALL_PREFIX = "prorl-call"
SERVER = "(server)"


def call_name(handler: str, method: str, job_id: str) -> str:
    """The name of a task or thread that runs a handler's method."""
    return f"{CALL_PREFIX} {handler} {method} {job_id}"


class Watchdog:
    """``stalls`` counts blocked loops by handler. A stall is counted once, however long; its stack is logged once per
    handler."""

    def __init__(self, *, threshold_s: float) -> None:
        self.stalls: dict[str, int] = {}
        self._threshold = threshold_s
        self._period = max(0.005, min(threshold_s / 4, 0.25))
        self._beat = time.monotonic()
        self._handle: asyncio.TimerHandle | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._modules: dict[str, str] = {}
        self._logged: set[str] = set()

    def open(self, handlers: Iterable[BoundHandler]) -> None:
        """Begin to watch the running loop. Call from it."""
        self._modules = {each.module: each.name for each in handlers if each.module != "builtins"}
        loop = asyncio.get_running_loop()
        self._stop.clear()
        self._pulse(loop)
        self._thread = threading.Thread(
            target=self._look, args=(loop, threading.get_ident()), name="prorl-watchdog", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._handle is not None:
            self._handle.cancel()
        if self._thread is not None:
            self._thread.join(timeout=2.0)

    def _pulse(self, loop: asyncio.AbstractEventLoop) -> None:
        self._beat = time.monotonic()
        self._handle = loop.call_later(self._period, self._pulse, loop)

    def _look(self, loop: asyncio.AbstractEventLoop, loop_thread: int) -> None:
        counted: float | None = None
        last_look = time.monotonic()
        while not self._stop.wait(self._period):
            now = time.monotonic()
            # A machine that was asleep, or gave this process no time at all, is nobody's fault here.
            starved = now - last_look > self._threshold
            last_look = now
            beat = self._beat
            if starved or now - beat < self._threshold or beat == counted:
                continue
            frame = sys._current_frames().get(loop_thread)  # noqa: SLF001 - the documented way to another thread's stack
            who = self._culprit(loop, frame)
            if self._beat != beat:
                continue  # it came back while we looked: what we saw may be somebody else
            counted = beat
            self.stalls[who] = self.stalls.get(who, 0) + 1
            if who not in self._logged:
                self._logged.add(who)
                stack = "".join(traceback.format_stack(frame)) if frame is not None else "(no stack)\n"
                log.warning(
                    "%s blocks the event loop (%.2f s so far): make the method a plain `def`, or use "
                    "asyncio.to_thread\n%s",
                    f"handler {who}" if who != SERVER else "the server",
                    now - beat,
                    stack,
                )

    def _culprit(self, loop: asyncio.AbstractEventLoop, frame: FrameType | None) -> str:
        task = asyncio.current_task(loop)
        name = task.get_name() if task is not None else ""
        if name.startswith(CALL_PREFIX + " "):
            return name.split(" ")[1]
        while frame is not None:
            handler = self._modules.get(frame.f_globals.get("__name__", ""))
            if handler is not None:
                return handler
            frame = frame.f_back
        return SERVER
