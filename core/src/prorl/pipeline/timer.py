"""A job's clock: counts work, not waiting.

It runs between ``begin`` and ``end`` of a stage and stands still while at least one hold is taken (the LLM pool is
paused for a weight update). Budgets are per stage and in total; whichever is used up first fires once. Between stages
there is no timer in the event loop at all, so a queued job costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from prorl.api.errors import BudgetExceeded
from prorl.wire.jobs import Budgets, StageName

OnExpiry = Callable[[BudgetExceeded], None]


class JobTimer:
    """Seconds on the monotonic clock (uvloop's own is coarse). ``None`` in ``budgets`` is no limit."""

    def __init__(self, budgets: Budgets) -> None:
        self._loop = asyncio.get_running_loop()
        self._limits: dict[StageName, float | None] = {
            "init": budgets.init_s,
            "run": budgets.run_s,
            "eval": budgets.eval_s,
        }
        self._total = budgets.total_s
        self._before = 0.0  # work of the stages that have ended
        self._worked = 0.0  # work of this stage, up to the last pause
        self._since: float | None = None  # None: standing still
        self._stage: StageName | None = None
        self._on_expiry: OnExpiry | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._holds: set[object] = set()

    @property
    def exhausted(self) -> bool:
        """Nothing is left of the total budget."""
        return self._total is not None and self._before + self.worked >= self._total

    @property
    def worked(self) -> float:
        """Seconds of work in this stage so far."""
        return self._worked + (monotonic() - self._since if self._since is not None else 0.0)

    def begin(self, stage: StageName, on_expiry: OnExpiry) -> None:
        self._stage, self._on_expiry = stage, on_expiry
        self._worked = 0.0
        self._holds = set()  # an abandoned handler's hold must not stop the next stage's clock
        self._go()

    def end(self) -> float:
        """End the stage; returns its seconds of work."""
        self._stand()
        worked, self._worked = self._worked, 0.0
        self._before += worked
        self._stage = self._on_expiry = None
        return worked

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Stand still inside the block. Holds nest and may overlap; the clock goes on when the last one ends."""
        token = object()
        if not self._holds:
            self._stand()
        holds = self._holds
        holds.add(token)
        try:
            yield
        finally:
            holds.discard(token)
            if holds is self._holds and not holds and self._stage is not None:
                self._go()

    def _go(self) -> None:
        self._since = monotonic()
        limit = self._limit()
        if limit is not None:
            self._handle = self._loop.call_later(max(0.0, limit - self._worked), self._expire)

    def _stand(self) -> None:
        if self._since is not None:
            self._worked += monotonic() - self._since
            self._since = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _limit(self) -> float | None:
        """What this stage may use: its own budget or what the total leaves, whichever is less."""
        own = self._limits[self._stage] if self._stage is not None else None
        left = self._total - self._before if self._total is not None else None
        if own is None or left is None:
            return left if own is None else own
        return min(own, left)

    def _expire(self) -> None:
        self._handle = None
        on_expiry, self._on_expiry = self._on_expiry, None
        if on_expiry is None or self._stage is None:
            return
        own = self._limits[self._stage]
        if own is not None and own == self._limit():
            on_expiry(BudgetExceeded(f"{self._stage} used up its {own:g} s", code=f"{self._stage}_budget"))
        else:
            on_expiry(BudgetExceeded(f"the job used up its {self._total:g} s, in {self._stage}", code="total_budget"))
