"""Real sandboxes by the best runtime of this machine, and a real comparing process, shared by all tests."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from prorl.api import SandboxSpec
from prorl.api.sandbox import Bind
from prorl.grading import GraderPool
from prorl.plugins import discover
from prorl.sandbox.manager import SandboxManager
from prorl_code.handler import COMPARER
from prorl_code.judge.judge import Judge
from prorl_code.judge.program import RunLimits
from prorl_code.judge.verdict import Judged
from prorl_code.rows import Problem, Test
from prorl_code.settings import CodeSettings

HERE = Path(__file__).resolve().parent
SHARED = Path(os.environ.get("PRORL_SHARED") or HERE.parents[3] / "shared")
ROWS = "code_eurus_form.jsonl"


@pytest.fixture(scope="session")
def shared_rows() -> list[dict[str, Any]]:
    path = SHARED / "data" / ROWS
    if not path.exists():
        pytest.skip(f"no {path}: set PRORL_SHARED to the folder that holds data/{ROWS}")
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


class Court:
    """Judges candidates for given tests in real sandboxes, as the handler does."""

    def __init__(self, sandboxes: SandboxManager, comparers: GraderPool) -> None:
        self._sandboxes = sandboxes
        self._comparers = comparers
        self.opened: list[SandboxSpec] = []

    async def open(self, limits: RunLimits, binds: Sequence[Bind]) -> Any:
        spec = msgspec.structs.replace(limits.sandbox(SandboxSpec()), binds=tuple(binds))
        self.opened.append(spec)
        return await self._sandboxes.start(spec)

    async def judge(
        self, source: str, *tests: tuple[str, str], settings: CodeSettings | None = None, **problem: Any
    ) -> Judged:
        cases = tuple(Test(given=given, expected=expected) for given, expected in tests)
        return await self.problem(Problem(messages=(), tests=cases, **problem), source, settings)

    async def problem(self, problem: Problem, source: str, settings: CodeSettings | None = None) -> Judged:
        return await Judge(problem, settings or CodeSettings(), self.open, self._comparers).judge(source)

    @property
    def alive(self) -> int:
        return len(self._sandboxes._alive)


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def court():
    sandboxes = SandboxManager(discover().runtimes)
    async with GraderPool(COMPARER, size=1) as comparers:
        yield Court(sandboxes, comparers)
    await sandboxes.close()
