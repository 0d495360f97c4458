"""A checker: a program of the row's, in a sandbox of its own, that says whether an output is right.

``python3 program.py input.txt answer.txt output.txt``; it prints a number, at least 1 for a right output. One that ends
in any other way is tried on the expected answer in the output's place: if it takes that, the output was at fault, and
if not, the checker is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from prorl.api import GraderFault, Sandbox
from prorl.api.sandbox import Bind
from prorl_code.judge.bench import Bench
from prorl_code.judge.program import Ran, Run, RunLimits
from prorl_code.judge.source import script
from prorl_code.judge.verdict import TestVerdict
from prorl_code.rows import Test

INPUT, ANSWER, OUTPUT = "input.txt", "answer.txt", "output.txt"


class Checker:
    """An async context manager."""

    def __init__(
        self, source: str, limits: RunLimits, open_sandbox: Callable[[RunLimits, Sequence[Bind]], Awaitable[Sandbox]]
    ) -> None:
        program = script(source, INPUT, ANSWER, OUTPUT)
        self._bench = Bench(lambda: open_sandbox(limits, ()), program, limits)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._bench)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def check(self, test: Test, output: bytes) -> TestVerdict:
        """Raises ``GraderFault`` (``checker``) for one that does not even take the expected answer."""
        score, said = _score(await self._on(test, output))
        if score is not None:
            return TestVerdict(outcome="passed" if score >= 1 else "wrong_answer", reason=f"the checker says {said}")
        reference, its_word = _score(await self._on(test, test.expected.encode("utf-8", "replace")))
        if reference is None or reference < 1:
            raise GraderFault(f"the row's checker fails on the expected answer itself: {its_word}", code="checker")
        return TestVerdict(outcome="wrong_answer", reason=f"the checker cannot make sense of it: {said}")

    async def _on(self, test: Test, output: bytes) -> Ran:
        given, answer = (text.encode("utf-8", "replace") for text in (test.given, test.expected))
        return await self._bench.one(Run(files={INPUT: given, ANSWER: answer, OUTPUT: output}))


def _score(ran: Ran) -> tuple[float | None, str]:
    """What the checker gave, ``None`` if that is no number, and what it said."""
    words = ran.stdout.decode("utf-8", "replace").split()
    if ran.ended == "exit" and ran.code == 0 and words:
        try:
            return float(words[0]), " ".join(words)[:200]
        except ValueError:
            pass
    last = (ran.stderr.decode("utf-8", "replace").strip().splitlines() or [" ".join(words)[:200]])[-1]
    return None, f"{ran.ended} {ran.code}, {last[:200]!r}"
