"""The domain: a question, an IPython, and an answer in a box."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from prorl.agent import ToolAgentHandler
from prorl.api import ConfigError, GraderFault, InitOutput, Job, Message
from prorl.grading import GraderPool
from prorl_math.answer import final_answer
from prorl_math.rows import read_row
from prorl_math.settings import MathSettings

SYSTEM_PROMPT = """\
Solve the mathematics problem. Reason step by step, and use the IPython tool for calculations, checks and \
searches; its state lasts from one call to the next. Give the final answer once, in \\boxed{}, with nothing in the \
box but the answer: a number or expression in LaTeX, a list separated by commas, or the letter of the choice.\
"""

GRADER = "prorl_math.grading:grade"
Outcome = Literal["right", "wrong", "no_answer", "unreadable", "too_hard"]


class MathHandler(ToolAgentHandler):
    """Rewards the last boxed answer. Golds are checked before the run: a row that can't be graded costs no tokens."""

    tools = ("execute_ipython_cell", "think", "finish")
    system_prompt = SYSTEM_PROMPT
    max_good_golds: ClassVar[int] = 100_000

    def __init__(self) -> None:
        self._pool: GraderPool | None = None
        self._good_golds: set[str] = set()

    def messages(self, job: Job) -> list[Message]:
        return list(read_row(job.instance).messages)

    async def init(self, job: Job) -> InitOutput:
        await self._check_gold(read_row(job.instance).gold, self._settings(job))
        return await super().init(job)

    async def grade(self, job: Job) -> dict[str, Any]:
        settings = self._settings(job)
        gold = read_row(job.instance).gold
        # a finish message without a box leaves the word to the reply it came with
        answer = final_answer(job.run_output["answer"]) or final_answer(job.run_output["reply"])
        if not answer:
            outcome, reason = "no_answer", "no boxed answer"
        else:
            await self._check_gold(gold, settings)
            outcome, reason = await self._compare(gold, answer, settings)
        rewards = {"right": settings.reward_correct, "no_answer": settings.reward_no_answer}
        return {
            "reward": rewards.get(outcome, settings.reward_wrong),
            "resolved": outcome == "right",
            "reason": reason,
            "metrics": {"gold": gold, "predicted": answer, "verdict": outcome},
        }

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.close()

    def _settings(self, job: Job) -> MathSettings:
        settings = job.settings if job.settings is not None else MathSettings()
        if not isinstance(settings, MathSettings):
            raise ConfigError(f"math needs MathSettings, not {type(settings).__name__}")
        return settings

    def _graders(self, settings: MathSettings) -> GraderPool:
        if self._pool is None:
            self._pool = GraderPool(GRADER, size=settings.grader_processes)
        return self._pool

    async def _check_gold(self, gold: str, settings: MathSettings) -> None:
        """Raises ``GraderFault`` (``bad_gold``) when nothing could ever be compared with ``gold``."""
        if gold in self._good_golds:
            return
        try:
            checked = await self._graders(settings).grade({"gold": gold}, settings.grader_timeout_s)
        except GraderFault as fault:
            if fault.code not in ("timeout", "crashed", "raised"):
                raise
            raise GraderFault(f"the gold answer {gold!r:.200} cannot be graded: {fault}", code="bad_gold") from fault
        if checked["verdict"] != "good_gold":
            raise GraderFault(checked["reason"], code="bad_gold")
        if len(self._good_golds) >= self.max_good_golds:
            self._good_golds.clear()
        self._good_golds.add(gold)

    async def _compare(self, gold: str, answer: str, settings: MathSettings) -> tuple[Outcome, str]:
        """The gold is known to be good, so what a grader can't bear is the answer's doing: wrong, and not a fault.

        A process that died may have been somebody else's doing (the kernel's, out of memory), so that is tried twice.
        """
        for attempt in (1, 2):
            try:
                graded = await self._graders(settings).grade(
                    {"gold": gold, "answer": answer}, settings.grader_timeout_s
                )
            except GraderFault as fault:
                if fault.code == "crashed" and attempt == 1:
                    continue
                if fault.code not in ("timeout", "crashed", "raised"):
                    raise
                return "too_hard", f"the answer could not be graded: {fault}"
            return graded["verdict"], graded["reason"]
        raise AssertionError("the second attempt returns or raises")
