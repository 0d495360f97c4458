"""A small event loop on ``selectors``: readable and writable descriptors, timers, children.

asyncio would do, and costs 80 ms of import at every start of a sandbox.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import selectors
import signal
import time
from collections.abc import Callable


class Timer:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Loop:
    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._children: dict[int, Callable[[int], None]] = {}
        self._running = True

    def watch(self, fd: int, on_readable: Callable[[], None] | None, on_writable: Callable[[], None] | None) -> None:
        """Say what is of interest on ``fd`` from now on; nothing at all forgets it."""
        events = (selectors.EVENT_READ if on_readable else 0) | (selectors.EVENT_WRITE if on_writable else 0)
        known = fd in self._selector.get_map()
        if not events:
            if known:
                self._selector.unregister(fd)
        elif known:
            self._selector.modify(fd, events, (on_readable, on_writable))
        else:
            self._selector.register(fd, events, (on_readable, on_writable))

    def forget(self, fd: int) -> None:
        self.watch(fd, None, None)

    def later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(callback)
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), timer))
        return timer

    def on_exit(self, pid: int, callback: Callable[[int], None]) -> None:
        """Call ``callback(wait status)`` when the child ends."""
        self._children[pid] = callback

    def reap(self) -> bool:
        """Collect every child that has ended, orphans that were given to us among them; says whether any are left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            callback = self._children.pop(pid, None)
            if callback:
                callback(status)

    def stop(self) -> None:
        self._running = False

    def run(self) -> None:
        wake, woken = os.pipe()
        for fd in (wake, woken):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)

        def on_signal() -> None:
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)
            self.reap()

        self.watch(wake, on_signal, None)
        while self._running:
            self._turn()

    def _turn(self) -> None:
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        wait = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
        for key, events in self._selector.select(wait):
            # An earlier callback of this turn may have forgotten the descriptor, or closed and reopened its number.
            if self._selector.get_map().get(key.fd) is not key:
                continue
            on_readable, on_writable = key.data
            if events & selectors.EVENT_READ and on_readable:
                on_readable()
            elif events & selectors.EVENT_WRITE and on_writable:
                on_writable()
        while self._timers and self._timers[0][0] <= time.monotonic():
            timer = heapq.heappop(self._timers)[2]
            if timer.callback:
                timer.callback()
