"""Model and tools take turns on one chat, until something ends it.

::

    open ─> reply ─┬─ finish tool ───────────> "finish"
            ^      ├─ no call ───────────────> "answer"  (or a reminder, once)
            │      ├─ cut by max_tokens ─────> "length"  (or the model is told)
            │      ├─ context full ──────────> "context" (or a new segment, by compaction)
            │      ├─ last turn ─────────────> "max_turns"
            └─ run the calls, observe all of them together

What the model does wrong (an unknown tool, a call that can't be parsed, arguments that don't fit) is an observation it
can act on, and counted. What the machine does wrong is a fault and leaves the loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from prorl.agent.budget import BudgetedChat, Compact
from prorl.agent.context import shorten
from prorl.agent.output import Ended, RunOutput
from prorl.agent.settings import AgentSettings
from prorl.api.errors import ContextOverflow, Fault, ModelFault
from prorl.api.job import JobServices
from prorl.api.llm import Message, Reply
from prorl.api.sandbox import Sandbox
from prorl.api.tools import Observation, Tool, ToolContext
from prorl.wire.trajectory import ToolCall

log = logging.getLogger("prorl.agent")

# The name under which a call that names no tool is answered: never the model's own text, templates print it unescaped.
NO_TOOL = "error"
CUT = "Your reply was cut off after {tokens} tokens, so nothing in it was done. Be brief, and write any tool call anew."


class AgentLoop:
    """One conversation of one job. ``output`` is written as the loop goes. ``agent`` names a sub-agent's; ``compact``
    makes a shorter conversation where the settings ask for it."""

    def __init__(
        self,
        services: JobServices,
        tools: Sequence[Tool],
        settings: AgentSettings,
        sandbox: Sandbox | None,
        output: RunOutput,
        *,
        agent: str = "",
        compact: Compact | None = None,
    ) -> None:
        self._services = services
        self._tools = tools
        self._by_name = {name: tool for tool in tools for name in (tool.name, *tool.aliases)}
        self._settings = settings
        self._context = ToolContext(
            sandbox=sandbox,
            timeout=settings.tool_timeout_s,
            output_chars=settings.observation_chars,
            table=services.table,
        )
        self._chat = BudgetedChat(services, settings, output, agent=agent, compact=compact)
        self._named = {"agent": agent} if agent else {}
        self.output = output

    async def run(self, messages: Sequence[Message]) -> None:
        """Go until the end; ``output["ended"]`` says which. Raises ``ContextOverflow`` when the prompt itself leaves no
        room for a reply; ``ModelFault``, ``SandboxFault``, ``TaskFault``."""
        await self._chat.open(messages, [tool.schema() for tool in self._tools])
        try:
            self.output["ended"] = await self._take_turns()
        except ContextOverflow as full:
            self._chat.note(f"the context is full: {full}")
            self.output["ended"] = "context"

    async def _take_turns(self) -> Ended:
        while True:
            reply = await self._reply()
            last = self.output["turns"] >= self._settings.max_turns
            if reply.finish == "length":
                self.output["cut_replies"] += 1
                if (ended := await self._after_cut(reply, last=last)) is not None:
                    return ended
                continue
            if not reply.tool_calls:
                if last or not self._settings.reminder or self.output["reminders"]:
                    return "answer"
                self.output["reminders"] += 1
                await self._chat.observe([Message(role="user", content=self._settings.reminder)])
                continue
            began = time.monotonic()
            results = await self._run_calls(reply.tool_calls)
            if results is None:
                return "finish"
            if last:  # the calls were run all the same: a file they wrote may be what is graded
                return "max_turns"
            await self._chat.observe(results, ms=(time.monotonic() - began) * 1000)

    async def _reply(self) -> Reply:
        """The next reply. The chat itself accounts for its time and tells the job's watchers."""
        reply = await self._chat.reply()
        if reply.finish == "abort":
            raise ModelFault("the engine aborted the reply", code="aborted")
        self.output["turns"] += 1
        self.output["answer"] = self.output["reply"] = reply.answer
        return reply

    async def _after_cut(self, reply: Reply, *, last: bool) -> Ended | None:
        """How a reply that is too long ends the rollout, if it does. The end of the context cuts as ``max_tokens``
        does."""
        if self._chat.is_full:
            full = ContextOverflow(f"a reply of {reply.tokens} tokens filled it")
            if last:
                raise full
            await self._chat.forget_reply(full)
            return None
        if last or self._settings.cut_reply == "end":
            return "length"
        await self._chat.observe([Message(role="user", content=CUT.format(tokens=reply.tokens))])
        return None

    async def _run_calls(self, calls: Sequence[ToolCall]) -> list[Message] | None:
        """The calls' observations, in order; ``None`` when one of them ended the rollout."""
        messages = []
        for index, call in enumerate(calls):
            began = time.monotonic()
            try:
                name, observation = await self._call(call, index)
            finally:
                spent = time.monotonic() - began
                self._services.spend(tools_s=spent)
            self.output["tool_calls"] += 1
            self.output["tool_errors"] += observation.is_error
            self._services.emit(
                "tool.call",
                turn=self.output["turns"],
                tool=name,
                ms=spent * 1000,
                is_error=observation.is_error,
                **self._named,
            )
            if observation.done:
                if observation.answer is not None:
                    self.output["answer"] = observation.answer
                return None
            text = shorten(observation.text, self._settings.observation_chars)
            messages.append(Message(role="tool", name=name, content=text))
        return messages

    async def _call(self, call: ToolCall, index: int) -> tuple[str, Observation]:
        tool = self._by_name.get(call.name)
        problem = self._problem(call, index)
        if problem is None and tool is not None:
            return tool.name, await self._use(tool, call)
        self.output["bad_calls"] += 1
        return tool.name if tool else NO_TOOL, Observation(text=f"Error: {problem}", is_error=True)

    async def _use(self, tool: Tool, call: ToolCall) -> Observation:
        """A tool that trips over what the model wrote is an observation like any other: were it a fault, a policy could
        learn to have the samples masked that go badly."""
        try:
            return await tool.call(call.arguments, self._context)
        except Fault:
            raise
        except Exception as error:
            log.exception("the tool %s failed", tool.name)
            self.output["tool_crashes"] += 1
            why = shorten(f"{type(error).__name__}: {error}", 300)
            return Observation(text=f"Error: the tool {tool.name} failed ({why})", is_error=True)

    def _problem(self, call: ToolCall, index: int) -> str | None:
        """Why the call can't be made, in words for the model."""
        if call.error is not None:
            return f"this tool call could not be read ({call.error}). Write it again."
        if call.name not in self._by_name:
            known = ", ".join(tool.name for tool in self._tools) or "none"
            return f"there is no tool named {shorten(call.name, 100)!r}. The tools are: {known}."
        if index >= self._settings.max_calls_per_turn:
            return f"only the first {self._settings.max_calls_per_turn} calls of a reply are run. Call it again."
        return None
