"""Asking again, when that may help: for searches, pages and language models alike."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0


class Setback(Exception):  # noqa: N818 - a base; each kind is named for what it is
    """A call without an answer. ``again``: asking again may help, ``after`` so many seconds if the service said so."""

    def __init__(self, message: str, *, again: bool = False, after: float | None = None) -> None:
        super().__init__(message)
        self.again = again
        self.after = after


async def persist(ask: Callable[[], Awaitable[T]], retries: int) -> T:
    """``ask()``, up to ``retries`` times more after a :class:`Setback` that may pass.

    A wait that the service asks for is kept, unless it is too long to be worth it; the others double. Raises the last
    setback.
    """
    wait = FIRST_WAIT_S
    for left in range(retries, -1, -1):
        try:
            return await ask()
        except Setback as setback:
            if not setback.again or not left or (setback.after or 0.0) > LONGEST_WAIT_S:
                raise
            pause = wait * random.uniform(0.5, 1.5) if setback.after is None else setback.after  # noqa: S311
        await asyncio.sleep(pause)
        wait = min(2 * wait, LONGEST_WAIT_S)
    raise AssertionError("the last attempt returns or raises")
