"""All rows of a file: what has an answer stays as it is, the others get one where it can be drawn and graded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

from prorl.api import GraderFault, TaskFault
from prorl.grading import GraderPool
from prorl_stem.extract.model import by_model
from prorl_stem.extract.rule import Drawn, NotDrawn, by_rule
from prorl_stem.grading.units import Units
from prorl_stem.llm import Llm, NoReply
from prorl_stem.rows import GOLD_FIELDS, read_row

GRADER = "prorl_stem.grading.ladder:grade"
CHECK_S = 15.0
AT_ONCE = 32


@dataclass(frozen=True)
class Drawing:
    """``row``: the row with its ``answer`` and ``answer_way`` (box, line, llm), or as it was; ``None`` when nothing
    could be drawn, which ``reason`` then explains. ``way``: also ``given``."""

    line: int
    row: dict[str, Any] | None
    way: str = ""
    answer: str = ""
    reason: str = ""


async def draw_rows(
    rows: Iterable[tuple[int, dict[str, Any]]], *, llm: Llm | None = None, retries: int = 3, processes: int = 2
) -> AsyncIterator[Drawing]:
    """In the rows' order. Every answer has been graded against itself: a gold that can't be is none."""
    units = await asyncio.to_thread(Units)
    async with GraderPool(GRADER, size=processes) as graders:
        drawer = _Drawer(units, graders, llm, retries)
        waiting: list[asyncio.Task[Drawing]] = []
        try:
            for line, row in rows:
                waiting.append(asyncio.ensure_future(drawer.draw(line, row)))
                if len(waiting) >= AT_ONCE:
                    yield await waiting.pop(0)
            while waiting:
                yield await waiting.pop(0)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


@dataclass(frozen=True)
class _Drawer:
    units: Units
    graders: GraderPool
    llm: Llm | None
    retries: int

    async def draw(self, line: int, row: dict[str, Any]) -> Drawing:
        if any(row.get(field) is not None for field in (*GOLD_FIELDS, "reward_model")):
            reason = await usable(row, self.graders)
            return Drawing(line, None if reason else row, "given", "", reason)
        solution = row.get("matched_solution")
        if not isinstance(solution, str) or not solution.strip():
            return Drawing(line, None, reason="matched_solution must be text that is not empty")
        drawn = await self._drawn(str(row.get("problem", "")), solution)
        if isinstance(drawn, NotDrawn):
            return Drawing(line, None, reason=drawn.reason)
        made = {**row, "answer": drawn.answer, "answer_way": drawn.way}
        reason = await usable(made, self.graders)
        return Drawing(line, None if reason else made, drawn.way, drawn.answer, reason)

    async def _drawn(self, problem: str, solution: str) -> Drawn | NotDrawn:
        drawn = by_rule(solution, self.units)
        if isinstance(drawn, Drawn) or self.llm is None:
            return drawn
        try:
            return await by_model(problem, solution, self.llm, self.retries)
        except NoReply as trouble:
            return NotDrawn(f"{drawn.reason}; the model: {trouble}")


async def usable(row: dict[str, Any], graders: GraderPool) -> str:
    """Why the row could not be run and graded; empty when it could."""
    try:
        task = read_row(row)
        checked = await graders.grade(
            {"gold": task.gold, "question": task.question, "options": task.options}, timeout=CHECK_S
        )
    except (TaskFault, GraderFault) as fault:
        return str(fault)
    return "" if checked["verdict"] == "good_gold" else str(checked["reason"])
