"""Notices from outside when the event loop is blocked, and by whom.

A thread looks at a beat that the loop should renew all the time. When it is overdue, the task that is running right now
is the culprit: the pipeline knows whose its own tasks are; for a task that a handler started itself the stack tells
(a frame of the handler's module).
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from prorl.pipeline.handlers import BoundHandler

log = logging.getLogger("prorl.pipeline")
SERVER = "(server)"
HandlerOf = Callable[[asyncio.Task[Any]], str | None]


class Watchdog:
    """``stalls`` counts blocked loops by handler. A stall is counted once, however long; its stack is logged once per
    handler."""

    def __init__(self, *, threshold_s: float, handler_of: HandlerOf) -> None:
        self.stalls: dict[str, int] = {}
        self._threshold = threshold_s
        self._handler_of = handler_of
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
                self._tell(who, now - beat, frame)

    def _tell(self, who: str, blocked_s: float, frame: FrameType | None) -> None:
        if who == SERVER:  # no handler stands in the stack: it would tell its reader nothing
            log.warning("the server itself blocks the event loop (%.2f s so far)", blocked_s)
            return
        stack = "".join(traceback.format_stack(frame)) if frame is not None else "(no stack)\n"
        log.warning(
            "handler %s blocks the event loop (%.2f s so far): make the method a plain `def`, or use asyncio.to_thread"
            "\n%s",
            who,
            blocked_s,
            stack,
        )

    def _culprit(self, loop: asyncio.AbstractEventLoop, frame: FrameType | None) -> str:
        task = asyncio.current_task(loop)
        known = self._handler_of(task) if task is not None else None
        if known is not None:
            return known
        while frame is not None:
            handler = self._modules.get(frame.f_globals.get("__name__", ""))
            if handler is not None:
                return handler
            frame = frame.f_back
        return SERVER
