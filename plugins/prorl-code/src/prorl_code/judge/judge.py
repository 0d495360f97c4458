"""A problem, a candidate, a verdict.

::

    runner in a sandbox without network       here                     comparing process, or the checker's own sandbox
    stdin or arguments ─▶ candidate  ─output─▶ expected output added ─▶ same?

What a test expects leaves the server's process only for the comparing process, which runs no program, and for the
sandbox of the row's own checker, in which no candidate ever runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any, Protocol

import msgspec

from prorl.api import GraderFault, Sandbox
from prorl.api.sandbox import Bind
from prorl_code.compare import has_fraction
from prorl_code.judge.bench import Bench
from prorl_code.judge.checker import Checker
from prorl_code.judge.interaction import Interaction
from prorl_code.judge.program import Ran, Run, RunLimits
from prorl_code.judge.source import called, whole
from prorl_code.judge.verdict import Judged, Outcome, TestVerdict
from prorl_code.rows import Problem, Test
from prorl_code.settings import CodeSettings

ENDED: dict[str, tuple[Outcome, str]] = {
    "timeout": ("timeout", "it took longer than {cpu_s:g} s of CPU time, or {wall_s:g} s in all"),
    "memory": ("memory_limit", "it took more than {memory_mb} MB"),
    "output": ("output_limit", "it wrote more than {output_mb} MB"),
    "lost": ("runtime_error", "it ended the judge's own process in its sandbox, twice"),
}


class Comparers(Protocol):
    """What :class:`prorl.grading.GraderPool` offers."""

    async def grade(self, payload: dict[str, Any], timeout: float) -> dict[str, Any]: ...


OpenSandbox = Callable[[RunLimits, Sequence[Bind]], Awaitable[Sandbox]]


class Judge:
    """Judges candidates for one problem. ``open_sandbox`` starts a sandbox within limits, with the binds."""

    def __init__(
        self, problem: Problem, settings: CodeSettings, open_sandbox: OpenSandbox, comparers: Comparers
    ) -> None:
        self._problem = problem
        self._settings = settings
        self._open_sandbox = open_sandbox
        self._comparers = comparers
        self._limits = limits_of(problem, settings)
        self._tests = problem.tests[: settings.max_tests]
        self._tolerance: float | None = None

    async def judge(self, source: str) -> Judged:
        """Raises ``GraderFault`` when the judge, and not the candidate, is at fault."""
        judged = Judged(tests=len(self._tests))
        if await asyncio.to_thread(is_about_floats, self._problem):  # a row may hold megabytes
            self._tolerance = self._settings.float_tolerance
        stop = self._settings.early_stop
        stop = self._settings.reward == "all" if stop is None else stop
        async with AsyncExitStack() as stack:
            verdicts = self._verdicts(source, judged, stack, stop=stop)
            async with aclosing(verdicts):
                number = 0
                async for verdict in verdicts:
                    number += 1
                    judged.add(number, verdict, self._tests[number - 1].given)
                    if stop and verdict.outcome != "passed":
                        break
        return judged

    async def _verdicts(
        self, source: str, judged: Judged, stack: AsyncExitStack, *, stop: bool
    ) -> AsyncGenerator[TestVerdict, None]:
        problem, limits = self._problem, self._limits

        async def start(limits: RunLimits, binds: Sequence[Bind]) -> Sandbox:
            judged.sandboxes += 1
            return await self._open_sandbox(limits, binds)

        program = called(source, problem.function) if problem.function else whole(source, problem.output_file)
        if problem.interactor:
            interaction = await stack.enter_async_context(Interaction(program, problem.interactor, limits, start))
            for test in self._tests:
                ran, verdict = await interaction.play(test)
                _count(judged, ran)
                yield verdict or self._ended(ran) or TestVerdict(outcome="passed", reason="the interactor accepts it")
            return
        bench = await stack.enter_async_context(Bench(lambda: start(limits, ()), program, limits, stop=stop))
        checker = None
        if problem.checker:
            checker = await stack.enter_async_context(Checker(problem.checker, limits, start))
        runs = [self._run(test) for test in self._tests]
        async with aclosing(bench.results(runs)) as results:
            number = 0
            async for ran in results:
                _count(judged, ran)
                yield self._ended(ran) or await self._answered(self._tests[number], ran, checker)
                number += 1

    def _run(self, test: Test) -> Run:
        given = test.given.encode("utf-8", "replace")
        if self._problem.input_file:
            return Run(files={self._problem.input_file: given})
        return Run(stdin=given)

    def _ended(self, ran: Ran) -> TestVerdict | None:
        """The verdict on a run that did not end well by itself."""
        if ran.ended != "exit":
            outcome, reason = ENDED[ran.ended]
            bounds = msgspec.to_builtins(self._limits) | {"output_mb": self._limits.output_bytes >> 20}
            return TestVerdict(outcome=outcome, reason=reason.format(**bounds))
        if ran.code == 0:
            return None
        said = last_line(ran.stderr)
        if said.startswith("MemoryError"):
            return TestVerdict(
                outcome="memory_limit", reason=ENDED["memory"][1].format(memory_mb=self._limits.memory_mb)
            )
        how = f"exit code {ran.code}" if ran.code > 0 else f"signal {-ran.code}"
        return TestVerdict(outcome="runtime_error", reason=f"{how}{f', {said}' if said else ''}")

    async def _answered(self, test: Test, ran: Ran, checker: Checker | None) -> TestVerdict:
        """The verdict on what a run that ended well gave as its answer."""
        problem, output = self._problem, ran.stdout
        if problem.function:
            output = ran.value
            if not output:
                return TestVerdict(outcome="wrong_answer", reason="the function did not return")
        elif problem.output_file:
            written = ran.files.get(problem.output_file)
            if written is None:
                return TestVerdict(outcome="wrong_answer", reason=f"it wrote no {problem.output_file}")
            output = written
        if checker:
            return await checker.check(test, output)
        return await self._compare(test, output.decode("utf-8", "replace"))

    async def _compare(self, test: Test, output: str) -> TestVerdict:
        payload = {
            "kind": "value" if self._problem.function else "text",
            "expected": test.expected,
            "output": output,
            "whitespace": self._settings.whitespace,
            "wrapped": self._problem.wrapped,
            "tolerance": self._tolerance,
        }
        try:
            answer = await self._comparers.grade(payload, self._settings.compare_timeout_s)
        except GraderFault as fault:
            # What was expected compares with itself, so what the comparison can't bear is the output's doing.
            if fault.code not in ("timeout", "crashed", "raised"):
                raise
            await self._comparers.grade({**payload, "output": test.expected}, self._settings.compare_timeout_s)
            return TestVerdict(outcome="wrong_answer", reason=f"its output cannot be compared ({fault})")
        return TestVerdict(outcome="passed" if answer["same"] else "wrong_answer", reason=answer["reason"])


def is_about_floats(problem: Problem) -> bool:
    return any(has_fraction(test.expected, value=problem.function is not None) for test in problem.tests)


def limits_of(problem: Problem, settings: CodeSettings) -> RunLimits:
    own = problem.time_limit_s
    cpu_s = settings.time_limit_s if own is None else own * settings.time_factor
    return RunLimits(
        cpu_s=cpu_s,
        wall_s=cpu_s * settings.wall_factor + 2.0,
        memory_mb=max(settings.memory_mb, int(problem.memory_mb or 0)),
        output_bytes=settings.output_mb << 20,
        processes=settings.processes,
        tmp_mb=settings.tmp_mb,
    )


def last_line(stderr: bytes) -> str:
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip()[:200] if lines else ""


def _count(judged: Judged, ran: Ran) -> None:
    judged.cpu_s = max(judged.cpu_s, ran.cpu_s)
    judged.memory_mb = max(judged.memory_mb, ran.memory_mb)
