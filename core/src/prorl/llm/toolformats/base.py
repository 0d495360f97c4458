"""What a tool-call format is: one convention by which a model is told of tools, calls them and is answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from prorl.api.llm import ToolSchema
from prorl.wire.trajectory import ToolCall


class TemplateRefusal(Exception):  # noqa: N818 - not an error: some templates take no system message, for instance
    """The template will not render these messages; the text says why, in the template's own words where it has any."""


class ParsedReply(msgspec.Struct, kw_only=True):
    """One reply, read.

    ``answer`` is the text after any thinking and without the calls, ``reasoning`` the thinking. ``content`` is the text
    as it was written, thinking included, without the calls; calls that could not be read stay in it, since nobody can
    write them again. ``thinking``: the text ends amidst thinking.
    """

    answer: str
    tool_calls: list[ToolCall]
    reasoning: str = ""
    content: str = ""
    thinking: bool = False


class ToolFormat(Protocol):
    """``name`` is what ``rendering.tool_format`` calls it; ``how`` tells a model in one line how a call is written."""

    @property
    def name(self) -> str: ...

    @property
    def how(self) -> str: ...

    def matches(self, rendered: str) -> bool:
        """Whether a template that was given tools teaches this format."""
        ...

    def describe(self, tools: Sequence[ToolSchema]) -> str:
        """For the system message of a template that knows no tools."""
        ...

    def wrap_response(self, body: str) -> str:
        """A tool's result as a user would say it, for a template that has no tool role."""
        ...

    def write(self, *calls: ToolCall) -> str:
        """Calls as the model itself would have written them, all in one reply; ``parse`` gives them back."""
        ...

    def parse(self, text: str, *, thinking: bool = False, tools: Sequence[ToolSchema] = ()) -> ParsedReply:
        """Read one reply. ``thinking``: the prompt had already opened ``<think>``; ``tools``: those it
        was given, whose schemas say what the arguments of formats without types are."""
        ...


def function_form(tool: ToolSchema) -> dict[str, Any]:
    """OpenAI's form of a tool, which templates expect."""
    function = {"name": tool.name, "description": tool.description, "parameters": msgspec.to_builtins(tool.parameters)}
    return {"type": "function", "function": function}
