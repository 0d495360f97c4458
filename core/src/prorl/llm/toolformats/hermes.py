"""``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``: Hermes, Qwen2.5, Qwen3 and many others."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from prorl.api.llm import ToolSchema
from prorl.llm.toolformats.base import ParsedReply, function_form
from prorl.llm.toolformats.reading import Read, broken, opening, read_reply, to_call, usable_name
from prorl.llm.toolformats.values import SPACE, decode_json
from prorl.wire.trajectory import ToolCall

_OPENERS = opening("<tool_call>")
_CLOSE = "</tool_call>"


class HermesFormat:
    name = "hermes"
    how = 'write <tool_call>{"name": "...", "arguments": {...}}</tool_call> with valid JSON inside'

    def matches(self, rendered: str) -> bool:
        return "<tool_call>" in rendered and '"arguments"' in rendered

    def describe(self, tools: Sequence[ToolSchema]) -> str:
        return listed(tools) + (
            "\n\nFor each function call, return a json object with function name and arguments within "
            '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": '
            "<args-json-object>}\n</tool_call>"
        )

    def wrap_response(self, body: str) -> str:
        return wrapped(body)

    def write(self, *calls: ToolCall) -> str:
        return "\n".join(f"<tool_call>\n{_json(call)}\n</tool_call>" for call in calls)

    def parse(self, text: str, *, thinking: bool = False, tools: Sequence[ToolSchema] = ()) -> ParsedReply:
        return read_reply(text, _OPENERS, self._read, how=self.how, thinking=thinking)

    def _read(self, text: str, found: re.Match[str]) -> Read:
        start = found.end()
        try:
            value, end = decode_json(text, start)
        except ValueError as error:
            # The next closing tag bounds the damage: calls after it are still read.
            close = text.find(_CLOSE, start)
            if close < 0:
                return self._unclosed(text)
            return Read([broken(f"the call is not valid JSON ({error})", self.how)], close + len(_CLOSE))
        close = text.find(_CLOSE, end)
        name = value.get("name") if isinstance(value, dict) else None
        if close < 0:
            return self._unclosed(text, name)
        after = close + len(_CLOSE)
        if text[end:close].strip(SPACE):
            return Read([broken("there is text after the JSON object", self.how, name)], after)
        return Read([call_of(value, "arguments", self.how)], after)

    def _unclosed(self, text: str, name: Any = None) -> Read:
        return Read([broken("the call is not closed by </tool_call>", self.how, name)], len(text))


def listed(tools: Sequence[ToolSchema]) -> str:
    """The tools as Qwen's templates list them."""
    signatures = "\n".join(json.dumps(function_form(tool), ensure_ascii=False) for tool in tools)
    return (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        f"You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{signatures}\n</tools>"
    )


def wrapped(body: str) -> str:
    """A tool's result inside tags."""
    return f"<tool_response>\n{body}\n</tool_response>"


def call_of(value: Any, key: str, how: str) -> ToolCall:
    """A call from its JSON object, whose arguments stand under ``key``."""
    if not isinstance(value, dict):
        return broken("the call must be a JSON object", how)
    name = value.get("name")
    if not usable_name(name):
        return broken('the call has no "name"', how)
    arguments = value.get(key, {})
    if isinstance(arguments, str):  # OpenAI's form: the object as JSON inside a string
        try:
            arguments, end = decode_json(arguments)
        except ValueError as error:
            return broken(f'"{key}" is a string that is not valid JSON ({error})', how, name)
        if value[key][end:].strip(SPACE):
            return broken(f'"{key}" is a string with text after its JSON', how, name)
    if not isinstance(arguments, dict):
        return broken(f'"{key}" must be a JSON object', how, name)
    return to_call(name, arguments, how)


def _json(call: ToolCall) -> str:
    return json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
