"""An event loop whose clock jumps: hours of waiting take no time, and a wait for nothing is an error.

For code that only ever waits for timers and for other coroutines; nothing real can be waited for in it::

    def test_it():
        assert virtual_run(main()) == ...
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class WaitsForEver(RuntimeError):  # noqa: N818 - says what happened
    """Every coroutine waits, and no timer is set: this would never have ended."""


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        self._now += seconds


class _Jumping(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        if ready := super().select(0):
            return ready
        if timeout is None:
            raise WaitsForEver("every coroutine waits, and no timer is set")
        self._loop.jump(max(0.0, timeout))
        return []


def virtual_run(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end, as ``asyncio.run`` does. Raises :class:`WaitsForEver`."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
