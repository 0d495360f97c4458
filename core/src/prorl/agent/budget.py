"""A chat whose context is budgeted: what is added leaves room for a reply.

What does not fit begins a new segment with a shorter conversation, if the settings say so, or is cut to what fits. When
neither helps, the context is full, and ``ContextOverflow`` says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import takewhile

from prorl.agent.context import keep_recent, length_of, shorten_all
from prorl.agent.output import RunOutput
from prorl.agent.settings import AgentSettings
from prorl.api.errors import ContextOverflow, TaskFault
from prorl.api.job import JobServices
from prorl.api.llm import Message, Reply, ToolSchema

Compact = Callable[[Sequence[Message], int], Awaitable[list[Message]]]
"""A shorter conversation of about so many characters, made of one that fills the context."""

_ATTEMPTS = 4  # at cutting a text to a number of tokens, which only the chat can count


class BudgetedChat:
    """What the loop talks to. ``output`` counts what was cut and compacted; ``compact`` makes a shorter conversation
    (by default :func:`~prorl.agent.context.keep_recent`)."""

    def __init__(
        self,
        services: JobServices,
        settings: AgentSettings,
        output: RunOutput,
        *,
        agent: str = "",
        compact: Compact | None = None,
    ) -> None:
        self._services = services
        self._settings = settings
        self._output = output
        self._agent = agent
        self._compact = compact or _keep_recent
        self._chat = services.chat(agent)

    @property
    def is_full(self) -> bool:
        return self._chat.room < self._settings.min_reply_tokens

    def note(self, text: str) -> None:
        self._chat.note(text)

    async def open(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> None:
        await self._chat.open(messages, tools)
        if self.is_full:
            raise ContextOverflow(
                f"it leaves {self._chat.room} tokens, and min_reply_tokens asks for {self._settings.min_reply_tokens}"
            )

    async def reply(self) -> Reply:
        """The next reply, cut where ``max_reply_tokens`` or the context ends."""
        try:
            return await self._chat.reply(max_tokens=self._settings.max_reply_tokens)
        except ContextOverflow as full:  # another engine took over, with a smaller context
            if not await self._begin_anew(self._chat.messages, full):
                raise
            return await self._chat.reply(max_tokens=self._settings.max_reply_tokens)

    async def forget_reply(self, full: ContextOverflow) -> None:
        """Go on in a new segment without the last reply, which the context has cut: the model replies again."""
        if not await self._begin_anew(self._chat.messages[:-1], full):
            raise full

    async def observe(self, messages: Sequence[Message], *, ms: float = 0.0) -> None:
        """Show the model what came of its reply: whole, in a new segment, or cut to what fits."""
        try:
            await self._chat.observe(messages, ms=ms, keep_free=self._settings.min_reply_tokens)
        except ContextOverflow as full:
            if not await self._begin_anew([*self._chat.messages, *messages], full):
                await self._observe_less(messages, full, ms=ms)

    async def _observe_less(self, messages: Sequence[Message], full: ContextOverflow, *, ms: float) -> None:
        keep_free, least = self._settings.min_reply_tokens, self._settings.min_observation_tokens
        if not any(message.role == "tool" for message in messages):
            raise full
        for _ in range(_ATTEMPTS):
            if (free := self._chat.room - keep_free) < least:
                break
            chars = sum(map(length_of, messages)) * 0.9 * free / max(full.needed or 0, free + 1)
            messages = shorten_all(messages, int(chars))
            try:
                await self._chat.observe(messages, ms=ms, keep_free=keep_free)
            except ContextOverflow as still:
                full = still
            else:
                self._output["cut_observations"] += 1
                return
        raise full

    async def _begin_anew(self, messages: Sequence[Message], full: ContextOverflow) -> bool:
        """Go on in a new segment with less of the conversation, if the settings allow it and it fits."""
        settings, chat = self._settings, self._chat
        if settings.context != "compact" or self._output["compactions"] >= settings.max_compactions:
            return False
        # Half of what the opening leaves of the context, going by what a token of this conversation holds.
        opening = sum(length_of(message) for message in takewhile(_opens, messages))
        whole = sum(map(length_of, chat.messages)) * (chat.tokens + chat.room) // max(1, chat.tokens)
        extra = max(0, whole - opening) // 2
        for _ in range(_ATTEMPTS):
            shorter = await self._compact(messages, opening + extra)
            try:
                await chat.restart(shorter, origin="compaction", note=str(full), keep_free=settings.min_reply_tokens)
            except ContextOverflow:
                extra //= 2
            except TaskFault as fault:
                if fault.code != "template":
                    raise
                # What the policy said may be what the template refuses: that must not have its sample masked.
                chat.note(f"no compaction: {fault}")
                return False
            else:
                self._output["compactions"] += 1
                named = {"agent": self._agent} if self._agent else {}
                self._services.emit("chat.compacted", messages=len(shorter), of=len(messages), **named)
                return True
        return False


def _opens(message: Message) -> bool:
    return message.role != "assistant"


async def _keep_recent(messages: Sequence[Message], chars: int) -> list[Message]:
    return keep_recent(messages, chars)
