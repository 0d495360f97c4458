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
from collections.abc import Awaitable, Callable, Sequence
from itertools import takewhile
from typing import Literal, TypedDict

from prorl.agent.context import keep_recent, length_of, shorten, shorten_all
from prorl.agent.settings import AgentSettings
from prorl.api.errors import ContextOverflow, Fault, ModelFault, TaskFault
from prorl.api.job import JobServices
from prorl.api.llm import Message, Reply
from prorl.api.sandbox import Sandbox
from prorl.api.tools import Observation, Tool, ToolContext
from prorl.wire.trajectory import ToolCall

log = logging.getLogger("prorl.agent")

Compact = Callable[[Sequence[Message], int], Awaitable[list[Message]]]
"""A shorter conversation of about so many characters, made of one that fills the context."""

Ended = Literal["finish", "answer", "max_turns", "context", "length", "timeout", "cancelled", "fault"]

# The name under which a call that names no tool is answered: never the model's own text, templates print it unescaped.
NO_TOOL = "error"
CUT = "Your reply was cut off after {tokens} tokens, so nothing in it was done. Be brief, and write any tool call anew."
_ATTEMPTS = 4  # at cutting a text to a number of tokens, which only the chat can count


class RunOutput(TypedDict):
    """What a run leaves in ``job.run_output``; kept up to date turn by turn, so a run that fails leaves its work.

    ``answer`` is the finish tool's answer, else the last reply's text; ``reply`` is the last reply's text in either
    case (after any thinking, without its calls). ``tool_errors`` counts observations that were errors; among them
    ``bad_calls`` (the call could not be used) and ``tool_crashes`` (the tool raised what it should not).
    ``cut_replies`` and ``cut_observations`` were too long for their limits, ``compactions`` began new segments.
    """

    answer: str
    reply: str
    ended: Ended
    turns: int
    tool_calls: int
    tool_errors: int
    bad_calls: int
    tool_crashes: int
    reminders: int
    cut_replies: int
    cut_observations: int
    compactions: int


def blank_output() -> RunOutput:
    return RunOutput(
        answer="",
        reply="",
        ended="fault",
        turns=0,
        tool_calls=0,
        tool_errors=0,
        bad_calls=0,
        tool_crashes=0,
        reminders=0,
        cut_replies=0,
        cut_observations=0,
        compactions=0,
    )


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
            sandbox=sandbox, timeout=settings.tool_timeout_s, output_chars=settings.observation_chars
        )
        self._chat = services.chat(agent)
        self._named = {"agent": agent} if agent else {}
        self._compact = compact or _keep_recent
        self.output = output

    async def run(self, messages: Sequence[Message]) -> None:
        """Go until the end; ``output["ended"]`` says which. Raises ``ContextOverflow`` when the prompt itself leaves no
        room for a reply; ``ModelFault``, ``SandboxFault``, ``TaskFault``."""
        await self._chat.open(messages, [tool.schema() for tool in self._tools])
        if self._chat.room < self._settings.min_reply_tokens:
            raise ContextOverflow(
                f"it leaves {self._chat.room} tokens, and min_reply_tokens asks for {self._settings.min_reply_tokens}"
            )
        try:
            self.output["ended"] = await self._take_turns()
        except ContextOverflow as full:
            self._chat.note(f"the context is full: {full}")
            self.output["ended"] = "context"

    async def _take_turns(self) -> Ended:
        while True:
            try:
                reply = await self._reply()
            except ContextOverflow as full:  # another engine took over, with a smaller context
                if not await self._begin_anew(self._chat.messages, str(full)):
                    raise
                continue
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
                await self._observe([Message(role="user", content=self._settings.reminder)])
                continue
            began = time.monotonic()
            results = await self._run_calls(reply.tool_calls)
            if results is None:
                return "finish"
            if last:  # the calls were run all the same: a file they wrote may be what is graded
                return "max_turns"
            await self._observe(results, ms=(time.monotonic() - began) * 1000)

    async def _reply(self) -> Reply:
        """The next reply. The chat itself accounts for its time and tells the job's watchers."""
        reply = await self._chat.reply(max_tokens=self._settings.max_reply_tokens)
        if reply.finish == "abort":
            raise ModelFault("the engine aborted the reply", code="aborted")
        self.output["turns"] += 1
        self.output["answer"] = self.output["reply"] = reply.answer
        return reply

    async def _after_cut(self, reply: Reply, *, last: bool) -> Ended | None:
        """How a reply that is too long ends the rollout, if it does. The end of the context cuts as ``max_tokens``
        does."""
        if self._chat.room < self._settings.min_reply_tokens:
            full = f"a reply of {reply.tokens} tokens filled it"
            if not last and await self._begin_anew(self._chat.messages[:-1], full):
                return None  # the model replies again, to what it replied to
            self._chat.note(f"the context is full: {full}")
            return "context"
        if last or self._settings.cut_reply == "end":
            return "length"
        await self._observe([Message(role="user", content=CUT.format(tokens=reply.tokens))])
        return None

    async def _observe(self, messages: Sequence[Message], *, ms: float = 0.0) -> None:
        """Show the model what came of its reply: whole, in a new segment, or cut to what fits; else the context is
        full, and ``ContextOverflow`` says so."""
        keep_free = self._settings.min_reply_tokens
        try:
            await self._chat.observe(messages, ms=ms, keep_free=keep_free)
        except ContextOverflow as full:
            if await self._begin_anew([*self._chat.messages, *messages], str(full)):
                return
            last = full
        else:
            return
        shown, least = list(messages), self._settings.min_observation_tokens
        for _ in range(_ATTEMPTS):
            free = self._chat.room - keep_free
            if free < least or not any(message.role == "tool" for message in messages):
                break
            chars = sum(map(length_of, shown))
            shown = shorten_all(messages, int(chars * 0.9 * free / max(last.needed or 0, free + 1)))
            try:
                await self._chat.observe(shown, ms=ms, keep_free=keep_free)
            except ContextOverflow as full:
                last = full
            else:
                self.output["cut_observations"] += 1
                return
        raise last

    async def _begin_anew(self, messages: Sequence[Message], why: str) -> bool:
        """Go on in a new segment with less of the conversation, if the settings allow it and it fits."""
        settings, chat = self._settings, self._chat
        if settings.context != "compact" or self.output["compactions"] >= settings.max_compactions:
            return False
        # Half of what the opening leaves of the context, going by what a token of this conversation holds.
        opening = sum(length_of(message) for message in takewhile(_opens, messages))
        whole = sum(map(length_of, chat.messages)) * (chat.tokens + chat.room) // max(1, chat.tokens)
        extra = max(0, whole - opening) // 2
        for _ in range(_ATTEMPTS):
            shorter = await self._compact(messages, opening + extra)
            try:
                await chat.restart(shorter, origin="compaction", note=why, keep_free=settings.min_reply_tokens)
            except ContextOverflow:
                extra //= 2
            except TaskFault as fault:
                if fault.code != "template":
                    raise
                # What the policy said may be what the template refuses: that must not have its sample masked.
                chat.note(f"no compaction: {fault}")
                return False
            else:
                self.output["compactions"] += 1
                self._services.emit("chat.compacted", messages=len(shorter), of=len(messages), **self._named)
                return True
        return False

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


def _opens(message: Message) -> bool:
    return message.role != "assistant"


async def _keep_recent(messages: Sequence[Message], chars: int) -> list[Message]:
    return keep_recent(messages, chars)
