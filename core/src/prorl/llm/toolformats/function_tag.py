"""``<function=name>{...}</function>``: the form that Llama 3.1's own documentation gives for one's own tools."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from prorl.api.llm import ToolSchema
from prorl.llm.toolformats.base import ParsedReply
from prorl.llm.toolformats.hermes import listed, wrapped
from prorl.llm.toolformats.reading import Read, broken, opening, read_reply, to_call
from prorl.llm.toolformats.values import SPACE, decode_json
from prorl.wire.trajectory import ToolCall

_OPENERS = opening("<function=")
_HEAD = re.compile(r"([^<>\n]*)>")
_CLOSE = "</function>"


class FunctionTagFormat:
    name = "function-tag"
    how = 'write <function=NAME>{"PARAMETER": VALUE, ...}</function> with valid JSON inside'

    def matches(self, rendered: str) -> bool:
        return "<function=" in rendered and "</function>" in rendered and "<parameter=" not in rendered

    def describe(self, tools: Sequence[ToolSchema]) -> str:
        return listed(tools) + (
            "\n\nTo call a function, reply in the following format:\n"
            '<function=example_function_name>{"example_name": "example_value"}</function>\n'
            "The parameters are one JSON object. Several calls stand one after another."
        )

    def wrap_response(self, body: str) -> str:
        return wrapped(body)

    def write(self, *calls: ToolCall) -> str:
        return "\n".join(
            f"<function={call.name}>{json.dumps(call.arguments, ensure_ascii=False)}</function>" for call in calls
        )

    def parse(self, text: str, *, thinking: bool = False, tools: Sequence[ToolSchema] = ()) -> ParsedReply:
        return read_reply(text, _OPENERS, self._read, how=self.how, thinking=thinking)

    def _read(self, text: str, found: re.Match[str]) -> Read:
        head = _HEAD.match(text, found.end())
        name = head[1].strip() if head else ""
        start = head.end() if head else found.end()
        problem = "the tag <function=NAME> is not complete"
        if head:
            try:
                arguments, end = decode_json(text, start)
            except ValueError as error:
                problem = f"the parameters are not valid JSON ({error})"
            else:
                if text.startswith(_CLOSE, end := _after_space(text, end)):
                    return Read([to_call(name, arguments, self.how)], end + len(_CLOSE))
                problem, start = "there is text after the JSON object", end
        if (close := text.find(_CLOSE, start)) < 0:
            return Read([broken("the call is not closed by </function>", self.how, name)], len(text))
        return Read([broken(problem, self.how, name)], close + len(_CLOSE))


def _after_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in SPACE:
        at += 1
    return at
