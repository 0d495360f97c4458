"""A conversation as OpenAI's chat messages, for engines that render it themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from prorl.api.llm import Message, ToolSchema
from prorl.wire.trajectory import ToolCall


def chat_messages(messages: Sequence[Message], *, as_they_are: bool = False) -> list[dict[str, Any]]:
    """Calls without an id are numbered through, and each tool result answers the earliest call that is still open.

    One that answers none is said by the user, for many servers refuse it otherwise; ``as_they_are``: it stays a tool's,
    for an engine whose rendering has to be ours.
    """
    sent: list[dict[str, Any]] = []
    open_calls: list[str] = []
    numbered = 0
    for message in messages:
        turn: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.role == "assistant" and message.tool_calls:
            open_calls = [f"call_{numbered + place}" for place in range(len(message.tool_calls))]
            numbered += len(open_calls)
            turn["tool_calls"] = [
                {"id": call_id, "type": "function", "function": _called(call)}
                for call_id, call in zip(open_calls, message.tool_calls, strict=True)
            ]
        elif message.role == "tool":
            call_id = message.tool_call_id or (open_calls[0] if open_calls else "none" if as_they_are else None)
            if call_id is None:
                turn["role"] = "user"
            else:
                turn["tool_call_id"] = call_id
                open_calls = [other for other in open_calls if other != call_id]
        if message.name:
            turn["name"] = message.name
        sent.append(turn)
    return sent


def chat_tools(tools: Sequence[ToolSchema]) -> dict[str, Any]:
    """The ``tools`` of a request; nothing where there are none, since servers refuse an empty list."""
    return {"tools": [_tool(tool) for tool in tools]} if tools else {}


def _called(call: ToolCall) -> dict[str, str]:
    return {"name": call.name, "arguments": msgspec.json.encode(call.arguments).decode()}


def _tool(tool: ToolSchema) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": msgspec.to_builtins(tool.parameters)}
    return {"type": "function", "function": function}
