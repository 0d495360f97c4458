"""What grading a patch yields."""

from __future__ import annotations

import msgspec

from prorl_swe.grading.verdict import Report, Verdict


class Graded(msgspec.Struct, frozen=True, kw_only=True):
    """``dropped``: paths of the patch that are the grader's, put back as they were before the tests.
    ``report`` is ``None`` when no test was run. ``seconds`` by step.
    """

    verdict: Verdict
    report: Report | None = None
    dropped: tuple[str, ...] = ()
    seconds: dict[str, float] = {}

    @property
    def log(self) -> str:
        return self.report.log if self.report else ""
