"""The domain: a question, an IPython, and an answer in a box."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from prorl.agent import ToolAgentHandler
from prorl.api import ConfigError, InitOutput, Job, Message
from prorl.grading.answers import answer_line, final_box
from prorl_math.judge import Judge
from prorl_math.rows import read_row
from prorl_math.settings import MathSettings

SOLVE = "Solve the mathematics problem. Reason step by step."
ANSWER = """\
Give the final answer once, in \\boxed{}, with nothing in the box but the answer: a number or expression in LaTeX, a \
list separated by commas, or the letter of the choice.\
"""
# what the prompt says of the tools that it may have, by their first names
ADVICE = {
    "execute_ipython_cell": "Use IPython for calculations, checks and searches; its state lasts between calls.",
    "execute_bash": "Use bash for calculations and to run programs; its state lasts between calls.",
}

READERS: Mapping[str, Callable[[str], str | None]] = {"box": final_box, "line": answer_line}


class MathHandler(ToolAgentHandler):
    """Rewards the last answer. Golds are checked before the run: a row that can't be graded costs no tokens."""

    tools = ("execute_ipython_cell", "think", "finish")

    def __init__(self) -> None:
        self._judge: Judge | None = None

    def messages(self, job: Job) -> list[Message]:
        """The row's own. Where neither it nor the settings have a system prompt, one that names the tools at hand."""
        messages = list(read_row(job.instance).messages)
        settings = self.settings_of(job)
        if settings.system_prompt is not None or messages[0].role == "system":
            return messages
        names = [tool.name for tool in job.services.tools(self.tools if settings.tools is None else settings.tools)]
        return [Message(role="system", content=system_prompt(names)), *messages]

    async def init(self, job: Job) -> InitOutput:
        settings = self.settings_of(job)
        await self._judge_of(settings).check_gold(read_row(job.instance).gold, settings.grader_timeout_s)
        return await super().init(job)

    async def grade(self, job: Job) -> dict[str, Any]:
        settings = self.settings_of(job)
        gold = read_row(job.instance).gold
        answer = self._answer(job, settings)
        if answer is None:
            outcome, reason = "no_answer", f"no answer in a {' or on an answer '.join(settings.read_from)}"
        else:
            outcome, reason = await self._judge_of(settings).compare(gold, answer, settings.grader_timeout_s)
        rewards = {"right": settings.reward_correct, "no_answer": settings.reward_no_answer}
        return {
            "reward": rewards.get(outcome, settings.reward_wrong),
            "resolved": outcome == "right",
            "reason": reason,
            "metrics": {"gold": gold, "predicted": answer, "verdict": outcome},
        }

    def settings_of(self, job: Job) -> MathSettings:
        settings = job.settings if job.settings is not None else MathSettings()
        if not isinstance(settings, MathSettings):
            raise ConfigError(f"math needs MathSettings, not {type(settings).__name__}")
        return settings

    async def close(self) -> None:
        if self._judge is not None:
            await self._judge.close()

    def _judge_of(self, settings: MathSettings) -> Judge:
        if self._judge is None:
            self._judge = Judge(processes=settings.grader_processes, memory_mb=settings.grader_memory_mb)
        return self._judge

    @staticmethod
    def _answer(job: Job, settings: MathSettings) -> str | None:
        """A finish message has the last word; one without an answer leaves it to the reply that it came with."""
        for place in settings.read_from:
            for text in (job.run_output["answer"], job.run_output["reply"]):
                if answer := READERS[place](text):
                    return answer
        return None


def system_prompt(tools: list[str]) -> str:
    """What the model is told before a problem, by the tools that it has."""
    return " ".join([SOLVE, *(advice for name, advice in ADVICE.items() if name in tools), ANSWER])
