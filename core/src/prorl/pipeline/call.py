"""Calls of a handler's methods, which always come to an end.

A :class:`StageCall` runs an ``async def`` stage inside the task that takes the job through its stages: no task, no
future of its own. A :class:`Call` runs as a task of its own, or on a thread of its own for a plain ``def`` (a daemon,
so that it cannot keep the server from exiting). Both can be interrupted: they are cancelled, and when they have not
ended after a short grace, or cannot be cancelled at all (a thread), they are *abandoned*: the job goes on without them.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from prorl.api.errors import Fault

OnAbandon = Callable[["Call"], None]


Outcome = tuple[Any, BaseException | None]


class StageCall:
    """Await :meth:`outcome` once. ``on_abandon`` must see to it that somebody else takes the job on."""

    __slots__ = ("_abandoned", "_ended", "_fault", "_grace", "_on_abandon", "_task")

    def __init__(self, *, grace_s: float, on_abandon: Callable[[Fault], None]) -> None:
        self._grace = grace_s
        self._on_abandon = on_abandon
        self._task: asyncio.Task[Any] | None = None
        self._fault: Fault | None = None
        self._ended = self._abandoned = False

    async def outcome(self, method: Callable[..., Any], *args: Any) -> Outcome | None:
        """What ``method`` returned, or what it raised or was interrupted with; ``None`` when it was abandoned."""
        self._task = asyncio.current_task()
        value: Any = None
        error: BaseException | None = None
        try:
            value = await method(*args)
        except BaseException as caught:  # a SystemExit would take the event loop with it
            error = caught
        self._ended = True
        task = self._task
        cancelled = task is not None and task.cancelling() > 0 and task.uncancel() == 0
        if cancelled and not isinstance(error, asyncio.CancelledError):
            with suppress(asyncio.CancelledError):  # by itself: the cancellation is still to come
                await asyncio.sleep(0)
        if self._fault is None:
            return value, error
        return None if self._abandoned else (None, self._fault)

    def interrupt(self, fault: Fault) -> None:
        """End the call with ``fault``. The first interruption counts."""
        if self._fault is not None or self._ended or self._task is None:
            return
        self._fault = fault
        self._task.cancel()
        self._task.get_loop().call_later(self._grace, self._abandon)

    def _abandon(self) -> None:
        if self._ended or self._task is None or self._fault is None:
            return
        self._abandoned = True
        self._task.cancel()  # once more: many swallow exactly one
        self._on_abandon(self._fault)


class Call:
    """Await :meth:`outcome` once. ``name`` is shown when the call is abandoned."""

    __slots__ = ("_error", "_fault", "_finished", "_grace", "_loop", "_on_abandon", "_task", "_value", "name")

    def __init__(self, name: str, *, grace_s: float, on_abandon: OnAbandon) -> None:
        self.name = name
        self._loop = asyncio.get_running_loop()
        self._finished: asyncio.Future[None] = self._loop.create_future()
        self._task: asyncio.Task[None] | None = None
        self._grace = grace_s
        self._on_abandon = on_abandon
        self._fault: Fault | None = None
        self._error: BaseException | None = None
        self._value: Any = None

    async def outcome(self, method: Callable[..., Any], *args: Any, threaded: bool = False) -> Outcome:
        """What ``method`` returned, or what it raised or was interrupted with."""
        if threaded:
            threading.Thread(target=self._on_thread, args=(method, args), name=self.name, daemon=True).start()
        else:
            self._start(self._guard(method, args))
        try:
            await self._finished
        except asyncio.CancelledError:  # the event loop is going down
            if self._task is not None:
                self._task.cancel()
            raise
        error = self._fault or self._error
        return (None, error) if error is not None else (self._value, None)

    def interrupt(self, fault: Fault) -> None:
        """End the call with ``fault``. The first interruption counts."""
        if self._fault is not None or self._finished.done():
            return
        self._fault = fault
        if self._task is None:
            self._abandon()
        else:
            self._task.cancel()
            self._loop.call_later(self._grace, self._abandon)

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Call back when an abandoned ``async`` call does end after all."""
        if self._task is not None:
            self._task.add_done_callback(lambda _: callback())

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._task = self._loop.create_task(coroutine, name=self.name)
        self._task.add_done_callback(lambda _: self._finish())

    async def _guard(self, method: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Everything that comes out of a handler stays in here: a SystemExit would take the event loop with it."""
        try:
            value = method(*args)
            self._value = await value if inspect.isawaitable(value) else value
        except BaseException as error:
            self._error = error

    def _on_thread(self, method: Callable[..., Any], args: tuple[Any, ...]) -> None:
        value, error = None, None
        try:
            value = method(*args)
        except BaseException as caught:
            error = caught
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._from_thread, value, error)

    def _from_thread(self, value: Any, error: BaseException | None) -> None:
        if error is None and inspect.isawaitable(value) and self._fault is None:
            self._start(self._guard(lambda: value, ()))
            return
        self._value, self._error = value, error
        self._finish()

    def _finish(self) -> None:
        if not self._finished.done():
            self._finished.set_result(None)

    def _abandon(self) -> None:
        if self._finished.done():
            return
        if self._task is not None:
            self._task.cancel()  # once more: many swallow exactly one
        self._on_abandon(self)
        self._finish()
