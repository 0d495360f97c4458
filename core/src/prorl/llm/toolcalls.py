"""How a model writes tool calls, and how they are read. What a model wrote is parsed, never evaluated.

A broken call becomes a :class:`~prorl.wire.trajectory.ToolCall` whose ``error`` tells the model what to mend; the
rollout goes on. Reading is one pass over the text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

import msgspec

from prorl.api.llm import ToolSchema
from prorl.wire.trajectory import ToolCall


class ParsedReply(msgspec.Struct, kw_only=True):
    """``answer`` is the text after any thinking and without the calls, ``reasoning`` the thinking, ``content`` the text
    as it was written, thinking included, without the calls. ``thinking``: the text ends amidst thinking."""

    answer: str
    tool_calls: list[ToolCall]
    reasoning: str = ""
    content: str = ""
    thinking: bool = False


class ToolFormat(Protocol):
    """One convention for tools: how they are described, called and answered."""

    def matches(self, rendered: str) -> bool:
        """Whether a template that was given tools teaches this format."""
        ...

    def describe(self, tools: Sequence[ToolSchema]) -> str:
        """For the system message of a template that knows no tools."""
        ...

    def wrap_response(self, body: str) -> str:
        """A tool's result as a user would say it, for a template that has no tool role."""
        ...

    def parse(self, text: str, *, thinking: bool = False, tools: Sequence[ToolSchema] = ()) -> ParsedReply:
        """Read one reply. ``thinking``: the prompt had already opened ``<think>``; ``tools``: those it
        was given, whose schemas say what the arguments of formats without types are."""
        ...


def function_form(tool: ToolSchema) -> dict[str, Any]:
    """OpenAI's form of a tool, which templates expect."""
    function = {"name": tool.name, "description": tool.description, "parameters": msgspec.to_builtins(tool.parameters)}
    return {"type": "function", "function": function}


_HOW = 'write <tool_call>{"name": "...", "arguments": {...}}</tool_call> with valid JSON inside'
_TAG = re.compile(r"</?think>|<tool_call>")
_CLOSE = "</tool_call>"
_MOST_CALLS = 64  # also what keeps reading linear: an error message costs a look over the whole text
_SPACE = " \t\r\n"


class HermesFormat:
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``: Hermes, Qwen2.5, Qwen3 and many others."""

    def matches(self, rendered: str) -> bool:
        return "<tool_call>" in rendered and '"arguments"' in rendered

    def describe(self, tools: Sequence[ToolSchema]) -> str:
        signatures = "\n".join(json.dumps(function_form(tool), ensure_ascii=False) for tool in tools)
        return (
            "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
            f"You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{signatures}\n"
            "</tools>\n\nFor each function call, return a json object with function name and arguments within "
            '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": '
            "<args-json-object>}\n</tool_call>"
        )

    def wrap_response(self, body: str) -> str:
        return f"<tool_response>\n{body}\n</tool_response>"

    def parse(self, text: str, *, thinking: bool = False, tools: Sequence[ToolSchema] = ()) -> ParsedReply:
        answer: list[str] = []
        calls: list[ToolCall] = []
        at, tagged = 0, thinking
        while (tag := _TAG.search(text, at)) is not None:
            before, at = text[at : tag.start()], tag.end()
            if tag[0] == "<tool_call>":
                if thinking:
                    continue  # a call drafted while thinking was not made
                answer.append(before)
                if len(calls) == _MOST_CALLS:
                    calls.append(_broken(f"only {_MOST_CALLS} calls are read in one reply, the rest was left out"))
                    return ParsedReply(answer="".join(answer).strip(), tool_calls=calls)
                call, at = _read_call(text, at)
                calls.append(call)
                continue
            if tag[0] == "</think>" and not tagged:
                answer, calls = [], []  # the thinking was opened by a prompt we do not know of
            elif not thinking:
                answer.append(before if tag[0] == "<think>" else before + tag[0])
            thinking = tag[0] == "<think>"
            tagged = True
        if not thinking:
            answer.append(text[at:])
        return ParsedReply(answer="".join(answer).strip(), tool_calls=calls, thinking=thinking)


def _read_call(text: str, start: int) -> tuple[ToolCall, int]:
    """The call whose body begins at ``start``, and where reading goes on."""
    body = start
    while body < len(text) and text[body] in _SPACE:
        body += 1
    try:
        value, end = _JSON.raw_decode(text, body)
    except (ValueError, RecursionError) as error:
        # The next closing tag bounds the damage: calls after it are still read.
        close = text.find(_CLOSE, start)
        if close < 0:
            return _broken("the call is not closed by </tool_call>"), len(text)
        return _broken(f"the call is not valid JSON ({_reason(error, body)})"), close + len(_CLOSE)
    close = text.find(_CLOSE, end)
    if close < 0:
        return _broken("the call is not closed by </tool_call>", _name(value)), len(text)
    after = close + len(_CLOSE)
    if text[end:close].strip(_SPACE):
        return _broken("there is text after the JSON object", _name(value)), after
    return _to_call(value), after


def _to_call(value: Any) -> ToolCall:
    if not isinstance(value, dict):
        return _broken("the call must be a JSON object")
    name = _name(value)
    if not name:
        return _broken('the call has no "name"')
    arguments = value.get("arguments", {})
    if isinstance(arguments, str):  # OpenAI's form: the object as JSON inside a string
        try:
            arguments = _JSON.decode(arguments)
        except (ValueError, RecursionError) as error:
            return _broken(f'"arguments" is a string that is not valid JSON ({_reason(error, 0)})', name)
    if not isinstance(arguments, dict):
        return _broken('"arguments" must be a JSON object', name)
    call = ToolCall(name=name, arguments=arguments)
    try:  # what cannot travel (lone surrogates, integers beyond 64 bits) is the model's mistake too
        msgspec.msgpack.encode(call)
    except (ValueError, OverflowError, RecursionError) as error:
        return _broken(f"the call holds a value that cannot be used ({type(error).__name__})")
    return call


def _name(value: Any) -> str:
    name = value.get("name") if isinstance(value, dict) else None
    return name if isinstance(name, str) and name.isprintable() else ""


def _broken(what: str, name: str = "") -> ToolCall:
    return ToolCall(name=name, error=f"{what}; {_HOW}")


def _reason(error: Exception, start: int) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos - start} of the call"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        raise ValueError("a number is too large")
    return value


_JSON = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)
