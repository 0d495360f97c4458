"""A patch, graded in sandboxes that the agent never touched.

::

    base ─┬─ test patch ───────────────────────┐ does not apply: the row's fault, masked
          └─ agent's patch ─ the grader's own ─┴─▶ tree ──▶ supervisor ──▶ report ──▶ verdict
             does not apply: 0   put back           │            │
                                             cannot be made, no test ran: once more without the agent's patch:
                                             that runs: the agent's fault, 0; if not: masked
"""

from __future__ import annotations

import time

from prorl.api import GraderFault
from prorl_swe.grading.graded import Graded
from prorl_swe.grading.logs import read_log
from prorl_swe.grading.resolve import failing, resolve, unexcused
from prorl_swe.grading.supervised import Said
from prorl_swe.grading.tree import UntestableError
from prorl_swe.grading.trial import KEPT_OUTPUT, OpenSandbox, Trial
from prorl_swe.grading.verdict import Report
from prorl_swe.inside.names import Wanted
from prorl_swe.patches.patch import Patch
from prorl_swe.repository.prepared import Prepared
from prorl_swe.rows.instance import Instance

CONTROL_S = 300.0
EXCUSES = ("skipped", "xfailed")


class Grader:
    """Grades patches for one task. ``test_timeout`` bounds one test and ``tests_timeout`` all of them, in seconds."""

    def __init__(
        self,
        instance: Instance,
        prepared: Prepared,
        open_sandbox: OpenSandbox,
        *,
        test_timeout: float = 60.0,
        tests_timeout: float = 900.0,
    ) -> None:
        self._instance = instance
        self._trial = Trial(instance, prepared, open_sandbox, test_timeout=test_timeout)
        self._tests_timeout = tests_timeout
        self._names = (*instance.fail_to_pass, *instance.pass_to_pass)

    async def grade(self, patch: Patch) -> Graded:
        """Raises ``GraderFault`` when the grader, or the row, and not the patch, is at fault."""
        seconds: dict[str, float] = {}
        try:
            tried = await self._trial.run(patch.data, self._names, self._tests_timeout, seconds=seconds)
        except UntestableError as error:
            await self._control(seconds)
            reason = f"with the patch there is no tree to be tested: {error}"
            return Graded(verdict=failing(self._instance, reason), seconds=seconds)
        built, said = tried.built, tried.said
        if built.rejected is not None:
            reason = f"the patch does not apply: {built.rejected}"
            return Graded(verdict=failing(self._instance, reason), seconds=seconds)
        report = Report(outcomes={}, complete=False, seconds=0.0) if said is None else self._report(said)
        if not report.outcomes:
            await self._control(seconds)
        verdict = resolve(self._instance, report)
        if said is None:
            verdict = failing(self._instance, "the tests ended the process that runs them")
        elif not report.outcomes and not report.tampering:
            verdict = failing(self._instance, "with the patch no test could be run")
        elif doubtful := self._excused(report):
            report = unexcused(report, doubtful, await self._without_patch(doubtful, seconds))
            verdict = resolve(self._instance, report)
        return Graded(verdict=verdict, report=report, dropped=built.dropped, seconds=seconds)

    def _report(self, said: Said) -> Report:
        outcomes = said.outcomes
        if self._instance.runner == "log":
            outcomes = read_log(self._instance.log_format or "pytest", said.log)
        return Report(
            outcomes=outcomes,
            complete=said.complete,
            seconds=said.seconds,
            log=said.log[-KEPT_OUTPUT:],
            tampering=said.tampering,
            notes=said.notes,
            marked=said.marked,
        )

    def _excused(self, report: Report) -> list[str]:
        """The named tests that neither passed nor failed."""
        wanted = Wanted(self._names, self._instance.match)
        return [test for test, outcome in report.outcomes.items() if outcome in EXCUSES and wanted.meant_by(test)]

    async def _without_patch(self, tests: list[str], seconds: dict[str, float]) -> Report:
        """What these tests do where the agent's patch has no part in it."""
        wanted = Wanted(self._names, self._instance.match)
        names = list(dict.fromkeys(name for test in tests for name in wanted.meant_by(test)))
        began = time.monotonic()
        try:
            tried = await self._trial.run(b"", names, min(CONTROL_S, self._tests_timeout))
        except UntestableError as error:
            raise GraderFault(f"there is no tree to be tested: {error}", code="environment") from error
        finally:
            seconds["control"] = time.monotonic() - began
        if tried.said is None:
            raise GraderFault("without the agent's patch the supervisor of the tests was lost", code="environment")
        return self._report(tried.said)

    async def _control(self, seconds: dict[str, float]) -> None:
        """Raises ``GraderFault`` if the tests cannot even be begun where the agent's patch has no part in it."""
        began = time.monotonic()
        total = min(CONTROL_S, self._tests_timeout)
        try:
            said = (await self._trial.run(b"", self._names, total, collect_only=True)).said
        except UntestableError as error:
            raise GraderFault(f"there is no tree to be tested: {error}", code="environment") from error
        finally:
            seconds["control"] = time.monotonic() - began
        if said is None or not said.ready:
            raise GraderFault(
                f"the tests cannot be run even without the agent's patch: {_last(said)}", code="environment"
            )
        if self._instance.runner != "log" and self._instance.pass_to_pass and not said.collected:
            raise GraderFault(
                f"without the agent's patch none of the row's tests is there: {_last(said)}", code="environment"
            )


def _last(said: Said | None) -> str:
    lines = said.log.strip().splitlines() if said else []
    return " / ".join(lines[-5:])[-1000:] or "nothing was said"
