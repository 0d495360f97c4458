"""The domain: a programming problem, a sandbox to work in, and a program that is judged on tests."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Sequence
from typing import Any

import msgspec

from prorl.agent import ToolAgentHandler
from prorl.api import ConfigError, InitOutput, Job, Message, Output, Sandbox
from prorl.api.sandbox import Bind
from prorl.grading import GraderPool
from prorl_code.answer import last_block
from prorl_code.judge.judge import Judge
from prorl_code.judge.program import RunLimits
from prorl_code.rows import Problem, read_row
from prorl_code.settings import CodeSettings

SYSTEM_PROMPT = """\
You solve programming problems in Python 3. You have a sandbox: write your program with the file editor, and try it on \
the examples and on cases of your own with bash or IPython before you are done. It will be judged on hidden tests, \
within limits of time and memory, without network.\
"""
INSTRUCTIONS = """\
Leave your program in the file {answer_file}: that file is what will be judged, so let it hold the complete program. \
If there is no such file, the last fenced code block of your final message is taken.\
"""
COMPARER = "prorl_code.compare:grade"
MAX_SOURCE = 256 << 10
READ_S = 30.0


class CodeHandler(ToolAgentHandler):
    """Rewards a program by its tests. Rows are checked before the run: one that can't be judged costs no tokens."""

    tools = ("str_replace_editor", "execute_bash", "execute_ipython_cell", "finish")
    system_prompt = SYSTEM_PROMPT

    def __init__(self) -> None:
        self._comparers: GraderPool | None = None
        self._at_once: asyncio.Semaphore | None = None

    async def init(self, job: Job) -> InitOutput:
        # On a thread: a row may hold megabytes of tests.
        job.metadata["problem"] = await asyncio.to_thread(self._read, job)
        return await super().init(job)

    def messages(self, job: Job) -> list[Message]:
        problem: Problem = job.metadata["problem"]
        settings = self.settings_of(job)
        *before, task = problem.messages
        return [*before, Message(role="user", content=describe(problem, task.content, settings))]

    async def prepare(self, job: Job, sandbox: Sandbox | None) -> dict[str, Any]:
        return {"problem": job.metadata["problem"]}

    async def run(self, job: Job) -> Output:
        await super().run(job)
        # Now, and not in EVAL: until then the agent's sandbox is gone.
        job.run_output["source"] = await read_file(job.runtime, self.settings_of(job).answer_file)
        return job.run_output

    async def grade(self, job: Job) -> dict[str, Any]:
        settings = self.settings_of(job)
        source = job.run_output.get("source")
        where = "file"
        if source is None:  # a finish message without a block leaves the word to the reply it came with
            where = "message"
            source = last_block(job.run_output["answer"]) or last_block(job.run_output["reply"])
        if source is None:
            reason = f"neither {settings.answer_file} nor a fenced block in the final message"
            return {
                "reward": settings.reward_no_answer,
                "resolved": False,
                "reason": reason,
                "metrics": {"verdict": "no_answer"},
            }
        if len(source) > MAX_SOURCE:
            reason = f"the program has more than {MAX_SOURCE >> 10} KB"
            return {
                "reward": settings.reward_wrong,
                "resolved": False,
                "reason": reason,
                "metrics": {"verdict": "too_long"},
            }
        judge = Judge(job.metadata["problem"], settings, self._opener(job, settings), self._pool(settings))
        async with self._turn(settings):
            judged = await judge.judge(source)
        share = judged.passed / judged.tests
        if settings.reward == "all":
            share = float(share == 1)
        return {
            "reward": settings.reward_wrong + share * (settings.reward_right - settings.reward_wrong),
            "resolved": judged.passed == judged.tests,
            "reason": judged.reason or f"all {judged.tests} tests passed",
            "metrics": {"verdict": judged.outcome, "answer_from": where, **judged.metrics()},
            "artifacts": {"solution": source},
        }

    async def close(self) -> None:
        if self._comparers is not None:
            await self._comparers.close()

    def settings_of(self, job: Job) -> CodeSettings:
        settings = job.settings if job.settings is not None else CodeSettings()
        if not isinstance(settings, CodeSettings):
            raise ConfigError(f"code needs CodeSettings, not {type(settings).__name__}")
        return settings

    def _read(self, job: Job) -> Problem:
        settings = self.settings_of(job)
        return read_row(job.instance, settings.format, public_tests_only=settings.public_tests_only)

    def _pool(self, settings: CodeSettings) -> GraderPool:
        if self._comparers is None:
            self._comparers = GraderPool(COMPARER, size=settings.comparers)
        return self._comparers

    def _turn(self, settings: CodeSettings) -> asyncio.Semaphore:
        """More programs at once than processors would run each other into their limits."""
        if self._at_once is None:
            self._at_once = asyncio.Semaphore(settings.judge_programs)
        return self._at_once

    def _opener(self, job: Job, settings: CodeSettings) -> Any:
        async def open_sandbox(limits: RunLimits, binds: Sequence[Bind]) -> Sandbox:
            spec = limits.sandbox(settings.sandbox)
            spec = msgspec.structs.replace(spec, binds=tuple(binds), workdir="/workspace", fakeroot=False)
            return await job.services.sandbox(spec, runtime=settings.judge_runtime or settings.runtime)

        return open_sandbox


def describe(problem: Problem, task: str, settings: CodeSettings) -> str:
    """The task as the model sees it: the row's words, what is to be written, and where it is to be left."""
    parts = [task]
    if problem.starter_code.strip():
        parts.append(f"Starter code:\n```python\n{problem.starter_code.strip()}\n```")
    if problem.function:
        parts.append(
            f"Write the function `{problem.function}` (or a class `Solution` with that method). "
            "It is called with the arguments; do not read or print anything."
        )
    elif problem.interactor:
        parts.append("Write a program that talks to the judge on standard input and output, and flushes each line.")
    elif problem.input_file:
        parts.append(f"Write a program that reads {problem.input_file} and writes {problem.output_file}.")
    else:
        parts.append("Write a program that reads standard input and prints to standard output.")
    instructions = INSTRUCTIONS if settings.instructions is None else settings.instructions
    if instructions:
        parts.append(instructions.replace("{answer_file}", settings.answer_file))
    return "\n\n".join(parts)


async def read_file(sandbox: Sandbox | None, path: str) -> str | None:
    """The text of a file of the agent's; ``None`` when there is none. One that is too long is cut, to be refused."""
    if sandbox is None:
        return None
    read = await sandbox.act("read", {"path": path, "limit": MAX_SOURCE + 1}, timeout=READ_S)
    data = read.data.get("data")
    if read.outcome != "ok" or not isinstance(data, str):
        return None
    try:
        text = base64.b64decode(data, validate=True).decode("utf-8", "replace")
    except binascii.Error:
        return None
    return text if text.strip() else None
