"""The contract of a task domain: the paper's ``AgentHandler`` (Listing 1).

Three stages, three callbacks for when they fail, and the last word on the result. Methods may be plain ``def``: they
then run on a thread of their own, so they may block. A handler object serves many jobs at once: what belongs to one
job lives on the job.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import Any, ClassVar

from prorl.api.job import Job
from prorl.api.sandbox import Sandbox

InitOutput = tuple[Sandbox | None, dict[str, Any], dict[str, Any]]
Output = dict[str, Any]


class AgentHandler(ABC):
    """One domain.

    ``eval`` returns the verdict: ``reward`` (float), ``resolved`` (bool, default reward >= 1), ``reason`` (str),
    ``metrics``, ``artifacts``, ``mask_sample``. ``final_result`` may change any of them.

    ``grading_needs_runtime`` keeps the sandbox through EVAL (it is released before otherwise).
    ``grades_unfinished_runs`` lets EVAL grade what a run that timed out or overflowed left behind.
    """

    grading_needs_runtime: ClassVar[bool] = False
    grades_unfinished_runs: ClassVar[bool] = False

    @abstractmethod
    def init(self, job: Job) -> Awaitable[InitOutput] | InitOutput:
        """Make ready: returns ``(runtime, metadata, config)``."""

    @abstractmethod
    def run(self, job: Job) -> Awaitable[Output] | Output:
        """Let the agent work; returns what grading needs."""

    @abstractmethod
    def eval(self, job: Job) -> Awaitable[Output] | Output:
        """Grade ``job.run_output``. Raise ``GraderFault`` when the grader, not the policy, is at fault."""

    def init_exception(self, job: Job, exc: BaseException) -> Awaitable[Output] | Output:
        """INIT failed: what to put into ``run_output``."""
        return {}

    def run_exception(self, job: Job, exc: BaseException) -> Awaitable[Output] | Output:
        """RUN failed: what to put into ``run_output`` (the work so far, for instance). It may take the job's
        ``Budgets.collect_s``."""
        return {}

    def eval_exception(self, job: Job, exc: BaseException) -> Awaitable[Output] | Output:
        """EVAL failed: what to put into ``eval_output``."""
        return {}

    def final_result(self, job: Job) -> Awaitable[Output] | Output:
        """The verdict that goes into the result; by default ``eval_output`` as it is."""
        return job.eval_output

    async def close(self) -> None:  # noqa: B027 - optional by design
        """The server is going down: release what the handler holds for all jobs (a pool of graders)."""
