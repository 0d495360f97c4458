"""The handler to inherit from for a task that a model solves in turns, with tools.

An author writes the prompt and the grade::

    class Capitals(ToolAgentHandler):
        tools = ("think", "finish")
        system_prompt = "You answer with one word."

        def messages(self, job: Job) -> list[Message]:
            return [Message(role="user", content=f"What is the capital of {job.instance['country']}?")]

        async def grade(self, job: Job) -> dict[str, Any]:
            right = job.run_output["answer"].strip().lower() == job.instance["capital"].lower()
            return {"reward": float(right), "reason": "as expected" if right else "another city"}

and the plugin hands it out as ``HandlerRecord(name="capitals", factory=Capitals, settings=AgentSettings, ...)``.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, cast

from prorl.agent.loop import AgentLoop, Ended, blank_output
from prorl.agent.settings import AgentSettings
from prorl.api.errors import BudgetExceeded, ConfigError, GraderFault, JobCancelled, TaskFault, boundary
from prorl.api.handler import AgentHandler, InitOutput, Output
from prorl.api.job import Job
from prorl.api.llm import Message
from prorl.api.sandbox import Sandbox
from prorl.api.tools import Tool

EARLY_TIMEOUT = 10.0
COUNTED = ("ended", "turns", "tool_calls", "tool_errors", "bad_calls", "tool_crashes", "reminders")


class ToolAgentHandler(AgentHandler):
    """Prompt, loop, grade. ``tools`` and ``system_prompt`` are the domain's own; ``AgentSettings`` may override them.

    A job's settings Struct must be :class:`AgentSettings` or inherit from it (``HandlerRecord(settings=...)``).
    """

    tools: ClassVar[tuple[str, ...]] = ()
    system_prompt: ClassVar[str] = ""

    @abstractmethod
    def messages(self, job: Job) -> list[Message]:
        """The task as the model first sees it. Called once, in INIT, before a sandbox is started: the place to check
        the row, too. A plain exception becomes a ``TaskFault``.

        ::

            def messages(self, job):
                return [Message(role="user", content=job.instance["question"])]
        """

    @abstractmethod
    async def grade(self, job: Job) -> dict[str, Any]:
        """The verdict on ``job.run_output`` (see :class:`~prorl.agent.RunOutput`): ``reward``, and if wanted
        ``resolved``, ``reason``, ``metrics``, ``artifacts``, ``mask_sample``. A plain exception becomes a
        ``GraderFault``: the sample is masked.

        ::

            async def grade(self, job):
                right = job.run_output["answer"].strip() == job.instance["gold"]
                return {"reward": float(right), "reason": "exact match" if right else "no match"}
        """

    async def prepare(self, job: Job, sandbox: Sandbox | None) -> dict[str, Any]:
        """Make the sandbox ready for the task, once it is up; what is returned becomes ``job.metadata``.

        ::

            async def prepare(self, job, sandbox):
                made = await sandbox.act("bash", {"command": "git init -q"}, timeout=30)
                return {"init": made.output}
        """
        return {}

    def settings_of(self, job: Job) -> AgentSettings:
        """The job's settings; the defaults when the record names no settings Struct.

        ::

            async def grade(self, job):
                strict = self.settings_of(job).max_turns == 1
                return {"reward": 1.0 if strict else 0.5}
        """
        settings = job.settings if job.settings is not None else AgentSettings()
        if not isinstance(settings, AgentSettings):
            raise ConfigError(
                f"{type(settings).__name__} must inherit from AgentSettings to be {job.handler}'s settings"
            )
        return settings

    async def init(self, job: Job) -> InitOutput:
        settings = self.settings_of(job)
        tools = self._tools(job, settings)
        with boundary(TaskFault, "the task's messages cannot be made"):
            messages = self._with_system_prompt(self.messages(job), settings)
        sandbox = None
        if any(tool.needs_sandbox for tool in tools):
            sandbox = await job.services.sandbox(settings.sandbox, runtime=settings.runtime)
            for action in {action for tool in tools for action in getattr(tool, "early", ())}:
                await sandbox.act(action, {}, timeout=EARLY_TIMEOUT)
        with boundary(TaskFault, "the task cannot be prepared"):
            metadata = await self.prepare(job, sandbox)
        return sandbox, metadata, {"messages": messages, "tools": [tool.name for tool in tools]}

    async def run(self, job: Job) -> Output:
        settings = self.settings_of(job)
        output = blank_output()
        job.run_output = cast("Output", output)
        loop = AgentLoop(job.services, self._tools(job, settings), settings, job.runtime, output)
        await loop.run(job.config["messages"])
        return job.run_output

    async def eval(self, job: Job) -> Output:
        with boundary(GraderFault, "grading failed"):
            verdict = await self.grade(job)
        return {**verdict, "metrics": {**loop_metrics(job.run_output), **verdict.get("metrics", {})}}

    def run_exception(self, job: Job, exc: BaseException) -> Output:
        """The work so far, with how it ended."""
        ended: Ended = "fault"
        if isinstance(exc, BudgetExceeded | TimeoutError):
            ended = "timeout"
        elif isinstance(exc, JobCancelled):
            ended = "cancelled"
        return {**blank_output(), **job.run_output, "ended": ended}

    def eval_exception(self, job: Job, exc: BaseException) -> Output:
        return {"metrics": loop_metrics(job.run_output)}

    def _tools(self, job: Job, settings: AgentSettings) -> list[Tool]:
        try:
            return job.services.tools(self.tools if settings.tools is None else settings.tools)
        except ConfigError as error:
            raise TaskFault(str(error), code="unknown_tool") from error

    def _with_system_prompt(self, messages: list[Message], settings: AgentSettings) -> list[Message]:
        """The settings' prompt replaces any other; the domain's own gives way to one that the row brings."""
        own = bool(messages) and messages[0].role == "system"
        if settings.system_prompt is not None:
            messages = messages[1:] if own else messages
        elif own:
            return messages
        prompt = self.system_prompt if settings.system_prompt is None else settings.system_prompt
        return [Message(role="system", content=prompt), *messages] if prompt else messages


def loop_metrics(output: Output) -> dict[str, Any]:
    """The loop's counts for the result's ``metrics``."""
    run: Output = {**blank_output(), **output}
    return {name: run[name] for name in COUNTED}
