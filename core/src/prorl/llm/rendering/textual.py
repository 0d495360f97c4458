"""Rendering for engines that take messages: they do it themselves, so there are texts for people here and no ids.

Which ids an engine made of the messages, it may say with its next reply (:class:`Owed` until then).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from prorl.api.errors import TaskFault
from prorl.api.llm import Message, ToolSchema
from prorl.llm.rendering.renderer import Rendered
from prorl.llm.rendering.source import RenderedRole
from prorl.llm.toolformats import HermesFormat, ToolFormat, formats
from prorl.wire.rendering import RenderingParams


class Owed(msgspec.Struct, frozen=True):
    """Messages of which the engine has yet to say what tokens they are."""

    role: RenderedRole
    text: str
    ms: float = 0.0


class NoTokenizer:
    """Implements :class:`~prorl.api.llm.Tokenizer` for a conversation without tokens of ours."""

    digest = "engine"

    async def encode(self, text: str, *, special: bool) -> list[int]:
        return []

    async def decode(self, ids: Sequence[int]) -> str:
        return ""


class TextRenderer:
    """Stands where a :class:`~prorl.llm.rendering.renderer.Renderer` stands. ``tool_format`` reads calls that a server
    leaves in the text: Hermes' form unless the job names another."""

    turn_ends: tuple[int, ...] = ()  # the engine knows its own

    def __init__(self, rendering: RenderingParams) -> None:
        self.tokenizer = NoTokenizer()
        self.tool_format = _format(rendering.tool_format)

    async def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), *, now: datetime) -> Rendered:
        return _shown(messages)

    async def between(self, messages: Sequence[Message], *, previous_ended_with: int | None, now: datetime) -> Rendered:
        return _shown(messages)

    async def rewrites(
        self,
        messages: Sequence[Message],
        observed: Sequence[Message],
        tools: Sequence[ToolSchema],
        *,
        now: datetime,
    ) -> bool:
        """Whether the engine did is seen by the prompt that its reply echoes."""
        return False

    async def forgets(self, observed: Sequence[Message], *, reasoned: bool, now: datetime) -> bool:
        return False


def _format(name: str | None) -> ToolFormat:
    known = formats()
    if name is not None and name not in known:
        raise TaskFault(
            f"there is no tool format {name!r}; the formats are {', '.join(sorted(known))}", code="rendering"
        )
    return known[HermesFormat.name if name is None else name]


def _shown(messages: Sequence[Message]) -> Rendered:
    return Rendered([], "\n".join(f"[{message.role}] {message.content}" for message in messages), False)
