"""The domain: a question of science, a search, a bash and an IPython, and an answer that is graded rung by rung."""

from __future__ import annotations

from typing import Any, ClassVar

from prorl.agent import ToolAgentHandler
from prorl.api import ConfigError, GraderFault, InitOutput, Job, Message, TaskFault, Tool
from prorl.grading import GraderPool
from prorl_stem.answer import final_answer
from prorl_stem.judge import Judge, speaks_to_judge, worth_judging
from prorl_stem.rows import StemTask, read_row
from prorl_stem.search import Desk, Search
from prorl_stem.search.leaks import Guard
from prorl_stem.search.offline import Offline
from prorl_stem.settings import JudgeSettings, StemSettings, operators_field
from prorl_stem.web import Fetch, Pages

SYSTEM_PROMPT = """\
Answer the question. Search for facts, constants and definitions, read documents with fetch, and calculate with \
IPython or bash; reason step by step. Give the final answer once, in \\boxed{}, with nothing in the box but the \
answer: a number with its unit, an expression in LaTeX, the letter of the choice, or a few words.\
"""

GRADER = "prorl_stem.grading.ladder:grade"


class StemHandler(ToolAgentHandler):
    """Rewards the last boxed answer. Golds are checked before the run: a row that can't be graded costs no tokens."""

    tools = ("search", "fetch", "execute_ipython_cell", "execute_bash", "think", "finish")
    system_prompt = SYSTEM_PROMPT
    max_good_golds: ClassVar[int] = 100_000

    def __init__(self) -> None:
        self._graders: GraderPool | None = None
        self._good_golds: set[tuple[Any, ...]] = set()
        self._desks: dict[str, Desk] = {}
        self._library: Offline | None = None
        self._pages: Pages | None = None
        self._judge: Judge | None = None

    def messages(self, job: Job) -> list[Message]:
        return list(read_row(job.instance).messages)

    def more_tools(self, job: Job) -> list[Tool]:
        """``search`` and ``fetch`` as the server's settings have them, knowing what may not be given away."""
        settings = self.settings_of(job)
        named = self.tools if settings.tools is None else settings.tools
        guard = Guard(
            read_row(job.instance).question if settings.search.block_question else "", settings.search.block_domains
        )
        tools: list[Tool] = []
        if {Search.name, *Search.aliases}.intersection(named):
            tools.append(Search(self._desk(settings), guard, settings.search))
        if {Fetch.name, *Fetch.aliases}.intersection(named):
            pages = self._all_pages(settings) if settings.pages.web else None
            tools.append(Fetch(pages, self._offline(settings), guard, settings.pages))
        return tools

    async def init(self, job: Job) -> InitOutput:
        if (field := operators_field(job.request.settings)) is not None:
            raise TaskFault(
                f"{field} cannot be set by a job: it stands in prorl.toml, under [handlers.stem]",
                code="operators_setting",
            )
        await self._check_gold(read_row(job.instance), self.settings_of(job))
        return await super().init(job)

    async def grade(self, job: Job) -> dict[str, Any]:
        settings = self.settings_of(job)
        task = read_row(job.instance)
        answer = self._answer(job, task)
        if answer is None:
            verdict, rung, reason = "no_answer", "none", "no answer"
        else:
            verdict, rung, reason = await self._verdict(task, answer, settings)
        rewards = {"right": settings.reward_correct, "no_answer": settings.reward_no_answer}
        return {
            "reward": rewards.get(verdict, settings.reward_wrong),
            "resolved": verdict == "right",
            "reason": reason,
            "metrics": {"gold": task.gold, "predicted": answer, "verdict": verdict, "rung": rung},
        }

    def settings_of(self, job: Job) -> StemSettings:
        settings = job.settings if job.settings is not None else StemSettings()
        if not isinstance(settings, StemSettings):
            raise ConfigError(f"stem needs StemSettings, not {type(settings).__name__}")
        return settings

    async def close(self) -> None:
        for part in (*self._desks.values(), self._pages, self._judge, self._graders):
            if part is not None:
                await part.close()

    # --- grading ---------------------------------------------------------------------------------------------------

    def _answer(self, job: Job, task: StemTask) -> str | None:
        """A finish message with an answer has the last word; else the reply that it came with."""
        finished = job.run_output.get("ended") == "finish"
        choice = bool(task.options)
        found = final_answer(job.run_output["answer"], finished=False, boxed_only=True, choice=choice)
        found = found or final_answer(job.run_output["reply"], finished=False, boxed_only=True, choice=choice)
        if found or task.boxed_only:
            return found
        found = final_answer(job.run_output["answer"], finished=finished, boxed_only=False, choice=choice)
        return found or final_answer(job.run_output["reply"], finished=False, boxed_only=False, choice=choice)

    async def _verdict(self, task: StemTask, answer: str, settings: StemSettings) -> tuple[str, str, str]:
        """``(verdict, rung, reason)``."""
        await self._check_gold(task, settings)
        graded = await self._compare(task, answer, settings)
        if graded["verdict"] != "undecided":
            return graded["verdict"], graded["rung"], graded["reason"]
        if not worth_judging(answer):
            return "wrong", "none", "the answer is empty, or nothing but symbols"
        if speaks_to_judge(answer, task.gold):
            return "wrong", "none", "the answer talks to whoever grades it"
        if settings.judge is None:
            if graded["kind"] == "text" and settings.undecided == "mask":
                raise GraderFault(
                    f"an answer in words ({graded['reason']}), and no judge: set [handlers.stem.judge]",
                    code="undecided",
                )
            return "wrong", graded["rung"], graded["reason"]
        opinion = await self._the_judge(settings.judge).compare(
            task.question, task.gold, answer, both_orders=settings.judge.both_orders
        )
        return "right" if opinion.same else "wrong", "judge", opinion.reason

    async def _check_gold(self, task: StemTask, settings: StemSettings) -> None:
        """Raises ``GraderFault`` (``bad_gold``) when nothing could ever be compared with the gold."""
        key = (task.gold, tuple(task.options.items()), settings.digits, settings.relative_tolerance)
        if key in self._good_golds:
            return
        try:
            checked = await self._pool(settings).grade(self._payload(task, None, settings), settings.grader_timeout_s)
        except GraderFault as fault:
            if fault.code not in ("timeout", "crashed", "raised"):
                raise
            raise GraderFault(
                f"the gold answer {task.gold!r:.200} cannot be graded: {fault}", code="bad_gold"
            ) from fault
        if checked["verdict"] != "good_gold":
            raise GraderFault(checked["reason"], code="bad_gold")
        if len(self._good_golds) >= self.max_good_golds:
            self._good_golds.clear()
        self._good_golds.add(key)

    async def _compare(self, task: StemTask, answer: str, settings: StemSettings) -> dict[str, Any]:
        """The gold is known to be good, so what a grader can't bear is the answer's doing: wrong, and not a fault.

        A process that died may have been somebody else's doing (the kernel's, out of memory), so that is tried twice.
        """
        payload = self._payload(task, answer, settings)
        for attempt in (1, 2):
            try:
                return await self._pool(settings).grade(payload, settings.grader_timeout_s)
            except GraderFault as fault:
                if fault.code == "crashed" and attempt == 1:
                    continue
                if fault.code not in ("timeout", "crashed", "raised"):
                    raise
                return {"verdict": "too_hard", "rung": "none", "reason": f"the answer could not be graded: {fault}"}
        raise AssertionError("the second attempt returns or raises")

    @staticmethod
    def _payload(task: StemTask, answer: str | None, settings: StemSettings) -> dict[str, Any]:
        return {
            "gold": task.gold,
            "answer": answer,
            "question": task.question,
            "options": task.options,
            "digits": settings.digits,
            "relative": settings.relative_tolerance,
        }

    # --- what all jobs share: made from the operator's settings, when the first job needs it ------------------------

    def _pool(self, settings: StemSettings) -> GraderPool:
        if self._graders is None:
            self._graders = GraderPool(GRADER, size=settings.grader_processes)
        return self._graders

    def _desk(self, settings: StemSettings) -> Desk:
        name = settings.search.backend
        if name not in self._desks:
            backend = self._offline(settings) if name == Offline.name else None
            self._desks[name] = Desk(settings.search, backend)
        return self._desks[name]

    def _offline(self, settings: StemSettings) -> Offline:
        if self._library is None:
            self._library = Offline(settings.search)
        return self._library

    def _all_pages(self, settings: StemSettings) -> Pages:
        if self._pages is None:
            self._pages = Pages(settings.pages)
        return self._pages

    def _the_judge(self, settings: JudgeSettings) -> Judge:
        if self._judge is None:
            self._judge = Judge(settings)
        return self._judge
