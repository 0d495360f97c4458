"""A job's clock counts work and not waiting; told on a clock that jumps, so that no machine is too slow for it."""

from __future__ import annotations

import asyncio

import pytest

from prorl.api import BudgetExceeded
from prorl.pipeline.timer import JobTimer
from prorl.testing.virtualtime import virtual_run
from prorl.wire import Budgets


@pytest.fixture
def virtually(monkeypatch):
    """Runs a coroutine on virtual time, by which the job's clock goes as well."""
    monkeypatch.setattr("prorl.pipeline.timer.monotonic", lambda: asyncio.get_running_loop().time())
    return virtual_run


def test_the_clock_stands_still_while_held(virtually):
    async def main():
        timer, fired = JobTimer(Budgets(run_s=5)), []
        timer.begin("run", fired.append)
        await asyncio.sleep(2)
        with timer.hold(), timer.hold():
            await asyncio.sleep(60)
        assert (fired, timer.worked) == ([], 2)
        await asyncio.sleep(2.5)
        assert fired == []
        await asyncio.sleep(1)
        assert [type(each) for each in fired] == [BudgetExceeded]
        assert timer.end() == 5.5

    virtually(main())


def test_overlapping_holds_end_with_the_last(virtually):
    async def main():
        timer = JobTimer(Budgets())
        timer.begin("run", lambda _: None)
        first, second = timer.hold(), timer.hold()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        await asyncio.sleep(1)
        assert timer.worked == 0
        second.__exit__(None, None, None)
        await asyncio.sleep(1)
        assert timer.worked == 1

    virtually(main())


def test_a_hold_of_an_abandoned_stage_does_not_touch_the_next(virtually):
    async def main():
        timer = JobTimer(Budgets())
        timer.begin("run", lambda _: None)
        left_behind = timer.hold()
        left_behind.__enter__()
        timer.end()
        timer.begin("eval", lambda _: None)
        await asyncio.sleep(1)
        assert timer.worked == 1
        left_behind.__exit__(None, None, None)
        await asyncio.sleep(1)
        assert timer.worked == 2

    virtually(main())


def test_the_total_is_what_the_stages_leave(virtually):
    async def main():
        timer, fired = JobTimer(Budgets(init_s=10, run_s=10, total_s=5)), []
        timer.begin("init", fired.append)
        await asyncio.sleep(1)
        timer.end()
        assert not timer.exhausted
        await asyncio.sleep(60)  # in a queue
        assert not timer.exhausted
        timer.begin("run", fired.append)
        await asyncio.sleep(3.5)
        assert fired == []
        await asyncio.sleep(1)
        timer.end()
        assert [each.code for each in fired] == ["total_budget"]
        assert timer.exhausted

    virtually(main())
