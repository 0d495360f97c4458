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
from collections.abc import Sequence
from typing import Any, ClassVar, cast

from prorl.agent.context import keep_recent
from prorl.agent.loop import AgentLoop
from prorl.agent.output import Ended, blank_output
from prorl.agent.settings import AgentSettings
from prorl.api.errors import (
    BudgetExceeded,
    ConfigError,
    ContextOverflow,
    GraderFault,
    JobCancelled,
    TaskFault,
    boundary,
)
from prorl.api.handler import AgentHandler, InitOutput, Output
from prorl.api.job import Job
from prorl.api.llm import Message
from prorl.api.sandbox import Sandbox
from prorl.api.tools import Tool

EARLY_TIMEOUT = 10.0
NOT_COUNTED = ("answer", "reply")


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

    async def open_sandbox(self, job: Job) -> Sandbox:
        """Start the agent's sandbox, when one of the tools needs one; by default the settings' own. The place to add
        what a task's sandbox needs.

        ::

            async def open_sandbox(self, job):
                spec = msgspec.structs.replace(self.settings_of(job).sandbox, image=job.instance["image"])
                return await job.services.sandbox(spec, runtime=self.settings_of(job).runtime)
        """
        settings = self.settings_of(job)
        return await job.services.sandbox(settings.sandbox, runtime=settings.runtime)

    async def collect(self, job: Job) -> dict[str, Any]:
        """What the agent leaves behind in its sandbox, for grading: added to ``job.run_output``. Called at the end of
        every run, also of one that was cut short (by its time, by a fault), while the sandbox is still there; after
        such a run it has the job's ``Budgets.collect_s`` (``HandlerRecord(budgets=...)``; 10 s unless somebody says
        otherwise). ``job.run_output["ended"]`` says how it ended.

        ::

            async def collect(self, job):
                shown = await job.runtime.act("bash", {"command": "cat answer.txt"}, timeout=10)
                return {"file": shown.output if shown.data.get("exit_code") == 0 else None}
        """
        return {}

    def more_tools(self, job: Job) -> list[Tool]:
        """Tools made for this one job, beside those by name: one that asks a sub-agent, for instance. Called in INIT,
        to see whether they need a sandbox, and again in RUN. One with the name of another takes its place.

        ::

            def more_tools(self, job):
                return [AskTheCritic(job)]
        """
        return []

    async def compact(self, job: Job, messages: Sequence[Message], chars: int) -> list[Message]:
        """A shorter conversation to go on with, when the context is full and the settings say ``context="compact"``.

        ``messages`` is the conversation with what could not be added to it; about ``chars`` characters leave half of
        what its opening does not take. Called again with fewer if the outcome does not fit. The default keeps the
        opening and the latest exchanges; it may be a model's summary as well. A plain exception becomes a
        ``TaskFault``.

        ::

            async def compact(self, job, messages, chars):
                chat = job.services.chat("summariser")
                story = "\\n".join(f"{message.role}: {message.content}" for message in messages[1:])
                await chat.open([Message(role="user", content=f"Sum up in a few lines:\\n{story[-chars:]}")])
                summary = (await chat.reply(max_tokens=500)).answer
                return [*messages[:1], Message(role="user", content=f"What happened so far: {summary}\\nGo on.")]
        """
        return keep_recent(messages, chars)

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
            sandbox = await self.open_sandbox(job)
            for action in {action for tool in tools for action in getattr(tool, "early", ())}:
                await sandbox.act(action, {}, timeout=EARLY_TIMEOUT)
        with boundary(TaskFault, "the task cannot be prepared"):
            metadata = await self.prepare(job, sandbox)
        return sandbox, metadata, {"messages": messages, "tools": [tool.name for tool in tools]}

    async def run(self, job: Job) -> Output:
        settings = self.settings_of(job)
        output = blank_output()
        job.run_output = cast("Output", output)

        async def compact(messages: Sequence[Message], chars: int) -> list[Message]:
            return await self._compacted(job, messages, chars)

        loop = AgentLoop(job.services, self._tools(job, settings), settings, job.runtime, output, compact=compact)
        try:
            await loop.run(job.config["messages"])
        except ContextOverflow as error:
            raise TaskFault(f"the prompt does not fit the model's context: {error}", code="prompt_too_long") from error
        job.run_output.update(await self.collect(job))
        return job.run_output

    async def eval(self, job: Job) -> Output:
        with boundary(GraderFault, "grading failed"):
            verdict = await self.grade(job)
        return {**verdict, "metrics": {**loop_metrics(job.run_output), **verdict.get("metrics", {})}}

    async def run_exception(self, job: Job, exc: BaseException) -> Output:
        """The work so far, with how it ended, and what the agent leaves behind."""
        ended: Ended = "fault"
        if isinstance(exc, BudgetExceeded | TimeoutError):
            ended = "timeout"
        elif isinstance(exc, JobCancelled):
            ended = "cancelled"
        job.run_output = {**blank_output(), **job.run_output, "ended": ended}
        return {**job.run_output, **await self.collect(job)}

    def eval_exception(self, job: Job, exc: BaseException) -> Output:
        return {"metrics": loop_metrics(job.run_output)}

    async def _compacted(self, job: Job, messages: Sequence[Message], chars: int) -> list[Message]:
        with boundary(TaskFault, "the conversation cannot be compacted"):
            shorter = await self.compact(job, messages, chars)
            if not shorter or shorter[-1].role not in ("user", "tool"):
                raise ValueError("compact() must return messages, the last of which is a user's or a tool's")
        return shorter

    def _tools(self, job: Job, settings: AgentSettings) -> list[Tool]:
        try:
            by_name = job.services.tools(self.tools if settings.tools is None else settings.tools)
        except ConfigError as error:
            raise TaskFault(str(error), code="unknown_tool") from error
        with boundary(TaskFault, "the task's tools cannot be made"):
            own = self.more_tools(job)
        names = {tool.name for tool in own}
        return [*(tool for tool in by_name if tool.name not in names), *own]

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
    return {name: run[name] for name in blank_output() if name not in NOT_COUNTED}
