"""Qwen3-Coder's tags, also those of Qwen3.5 and its kin::

    <tool_call>
    <function=NAME>
    <parameter=PARAMETER>
    VALUE
    </parameter>
    </function>
    </tool_call>

A value is plain text, whose line breaks next to its tags are not its own. What type it is, the tool's JSON schema says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from prorl.api.llm import ToolSchema
from prorl.llm.toolformats.base import ParsedReply
from prorl.llm.toolformats.hermes import listed, wrapped
from prorl.llm.toolformats.reading import Read, broken, opening, read_reply, to_call
from prorl.llm.toolformats.schematype import typed
from prorl.llm.toolformats.values import shown
from prorl.wire.trajectory import ToolCall

_OPENERS = opening("<tool_call>|<function=")
_FUNCTION = re.compile(r"\s*<function=([^<>\n]*)>\s*")
_BARE = re.compile(r"([^<>\n]*)>\s*")
_PARAMETER = re.compile(r"<parameter=([^<>\n]*)>")
# A value may speak of these tags itself: what closes it is followed by the next tag, and begins a line if the value
# does.
_VALUE_END = re.compile(r"</parameter>\s*(?=<parameter=|</function>|\Z)")
_LINE_END = re.compile(r"^</parameter>\s*(?=<parameter=|</function>|\Z)", re.MULTILINE)
# What no value holds: there the model forgot a closing tag.
_LOST = re.compile(r"^<parameter=|</function>\s*</tool_call>\s*<tool_call>\s*<function=", re.MULTILINE)
_CALL_END = re.compile(r"\s*</tool_call>")
_GOES_ON = re.compile(r"\s*<(?:tool_call>|function=)")
_CLOSE = "</tool_call>"


class Qwen3CoderFormat:
    name = "qwen3-coder"
    how = (
        "write <tool_call><function=NAME><parameter=PARAMETER>VALUE</parameter></function></tool_call>, each on a line"
    )

    def matches(self, rendered: str) -> bool:
        return "<function=" in rendered and "<parameter=" in rendered

    def describe(self, tools: Sequence[ToolSchema]) -> str:
        return listed(tools) + (
            "\n\nTo call a function, reply in the following format:\n\n"
            "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
            "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\n"
            "multiple lines\n</parameter>\n</function>\n</tool_call>\n\n"
            "A call stands inside <tool_call></tool_call>, its function inside <function=...></function>. Values of "
            "strings are written as they are, all others as JSON. Several calls stand one after another."
        )

    def wrap_response(self, body: str) -> str:
        return wrapped(body)

    def write(self, *calls: ToolCall) -> str:
        return "\n".join(
            f"<tool_call>\n<function={call.name}>\n"
            + "".join(f"<parameter={key}>\n{_said(value)}\n</parameter>\n" for key, value in call.arguments.items())
            + "</function>\n</tool_call>"
            for call in calls
        )

    def parse(self, text: str, *, thinking: bool = False, tools: Sequence[ToolSchema] = ()) -> ParsedReply:
        schemas = {tool.name: tool.parameters for tool in tools}

        ends = _Ends(text)

        def read(text: str, found: re.Match[str]) -> Read:
            return self._read(text, found, schemas, ends)

        return read_reply(text, _OPENERS, read, how=self.how, thinking=thinking)

    def _read(self, text: str, found: re.Match[str], schemas: Mapping[str, Mapping[str, Any]], ends: _Ends) -> Read:
        wrapped_call = found[0] == "<tool_call>"
        head = (_FUNCTION if wrapped_call else _BARE).match(text, found.end())
        if head is None:
            return self._give_up(text, found.end(), "the call does not begin with <function=NAME>")
        name, at = head[1].strip(), head.end()
        arguments: dict[str, Any] = {}
        while (parameter := _PARAMETER.match(text, at)) is not None:
            key = parameter[1].strip()
            end = ends.after(parameter.end())
            lost = _LOST.search(text, parameter.end(), len(text) if end is None else end.start())
            if end is None or lost is not None:
                until = len(text) if lost is None else lost.start()
                return self._give_up(text, until, f"the parameter {shown(key)} is not closed by </parameter>", name)
            if not key or key in arguments:
                return self._give_up(text, end.end(), f"the parameter {shown(key)} stands twice", name)
            value = text[parameter.end() : end.start()]
            value = value.removeprefix("\n").removesuffix("\n")
            arguments[key] = typed(value, key, schemas.get(name))
            at = end.end()
        if not text.startswith("</function>", at):
            return self._give_up(text, at, "the call is not closed by </function>", name)
        at += len("</function>")
        closed = _CALL_END.match(text, at)
        if wrapped_call and closed is None and not _GOES_ON.match(text, at):
            return self._give_up(text, at, "the call is not closed by </tool_call>", name)
        return Read([to_call(name, arguments, self.how)], closed.end() if closed else at)

    def _give_up(self, text: str, at: int, what: str, name: str = "") -> Read:
        """The next closing tag bounds the damage: calls after it are still read."""
        close = text.find(_CLOSE, at)
        if close < 0 and "not closed" not in what:
            what = "the call is not closed by </tool_call>"
        return Read([broken(what, self.how, name)], len(text) if close < 0 else close + len(_CLOSE))


class _Ends:
    """Where the values of one reply end. That none closes on a line of its own is found out once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lines = True

    def after(self, start: int) -> re.Match[str] | None:
        if self._lines and self._text.startswith("\n", start):
            if (found := _LINE_END.search(self._text, start)) is not None:
                return found
            self._lines = False
        return _VALUE_END.search(self._text, start)


def _said(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
