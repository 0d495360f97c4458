"""Interactive problems: the row's interactor and the candidate talk through two named pipes, each in its own sandbox.

The pipes stand in a folder that both see read-only, so there is nothing else that they could share. The interactor is
run as ``program.py input.txt answer.txt`` and ends with exit code 0 if it is content.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from prorl.api import GraderFault, Sandbox
from prorl.api.sandbox import Bind
from prorl_code.judge.bench import Bench
from prorl_code.judge.program import Program, Ran, Run, RunLimits
from prorl_code.judge.source import script
from prorl_code.judge.verdict import TestVerdict
from prorl_code.rows import Test

AT = "/run/pipes"
PATIENCE_S = 10.0
TO_CANDIDATE, TO_INTERACTOR = f"{AT}/a", f"{AT}/b"


class Interaction:
    """An async context manager: the pipes, and a sandbox for each of both."""

    def __init__(
        self,
        candidate: Program,
        interactor: str,
        limits: RunLimits,
        open_sandbox: Callable[[RunLimits, Sequence[Bind]], Awaitable[Sandbox]],
    ) -> None:
        self._stack = AsyncExitStack()
        self._folder = Path()

        def start() -> Awaitable[Sandbox]:
            return open_sandbox(limits, (Bind(source=str(self._folder), target=AT),))

        # While both wait for each other, the candidate's time must run out first.
        patient = msgspec.structs.replace(limits, wall_s=2 * limits.wall_s + PATIENCE_S)
        self._candidate = Bench(start, candidate, limits)
        self._interactor = Bench(start, script(interactor, "input.txt", "answer.txt"), patient)

    async def __aenter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="prorl-pipes-"))
        self._stack.callback(shutil.rmtree, self._folder)
        for name in ("a", "b"):
            os.mkfifo(self._folder / name)
            (self._folder / name).chmod(0o666)  # a sandbox's user may be anybody
        self._folder.chmod(0o711)
        await self._stack.enter_async_context(self._candidate)
        await self._stack.enter_async_context(self._interactor)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def play(self, test: Test) -> tuple[Ran, TestVerdict | None]:
        """How the candidate ended, and the verdict where the interactor has one."""
        given, answer = (text.encode("utf-8", "replace") for text in (test.given, test.expected))
        theirs = Run(pipes={"0": TO_CANDIDATE, "1": TO_INTERACTOR})
        ours = Run(files={"input.txt": given, "answer.txt": answer}, pipes={"0": TO_INTERACTOR, "1": TO_CANDIDATE})
        try:
            async with asyncio.TaskGroup() as group:
                candidate = group.create_task(self._candidate.one(theirs))
                interactor = group.create_task(self._interactor.one(ours))
        except ExceptionGroup as faults:
            raise faults.exceptions[0] from None
        ran, judge = candidate.result(), interactor.result()
        if ran.ended != "exit":
            return ran, None
        if judge.ended != "exit":
            raise GraderFault(f"the row's interactor ended by {judge.ended}", code="interactor")
        if judge.code != 0:
            last = (judge.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason given"])[-1]
            return ran, TestVerdict(outcome="wrong_answer", reason=f"the interactor says: {last[:200]}")
        return ran, None
