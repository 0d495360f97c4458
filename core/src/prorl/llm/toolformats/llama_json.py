"""``{"name": ..., "parameters": {...}}``, with or without ``<|python_tag|>`` before it: Llama 3.1 to 3.3 and kin.

Nothing marks where a bare call begins, so only an object that reads like a call is one; all else stays text. Several
calls are separated by ``;``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from prorl.api.llm import ToolSchema
from prorl.llm.toolformats.base import ParsedReply, function_form
from prorl.llm.toolformats.hermes import call_of, wrapped
from prorl.llm.toolformats.reading import Read, broken, opening, read_reply
from prorl.llm.toolformats.values import decode_json
from prorl.wire.trajectory import ToolCall

_OPENERS = opening(r'<\|python_tag\|>\s*|\{(?=\s*"(?:name|type|function)"\s*:)')
_TAUGHT = re.compile(r'\{\s*"name":\s*(?:<[^>"]*>|[a-z][a-z _-]*|"[$<{][^"]*"),\s*"parameters":')
_NEXT = re.compile(r"\s*;\s*")
_LOOK_BACK = 200


class LlamaJsonFormat:
    name = "llama-json"
    how = 'write {"name": "...", "parameters": {...}} as valid JSON and nothing else, several of them separated by ;'

    def matches(self, rendered: str) -> bool:
        return _TAUGHT.search(rendered) is not None

    def describe(self, tools: Sequence[ToolSchema]) -> str:
        signatures = "\n\n".join(json.dumps(function_form(tool), indent=4, ensure_ascii=False) for tool in tools)
        return (
            "You have access to the following functions. To call a function, please respond with JSON for a function "
            'call. Respond in the format {"name": function name, "parameters": dictionary of argument name and its '
            f"value}}. Do not use variables. Separate several calls by ;\n\n{signatures}"
        )

    def wrap_response(self, body: str) -> str:
        return wrapped(body)

    def write(self, *calls: ToolCall) -> str:
        return "; ".join(
            json.dumps({"name": call.name, "parameters": call.arguments}, ensure_ascii=False) for call in calls
        )

    def parse(self, text: str, *, thinking: bool = False, tools: Sequence[ToolSchema] = ()) -> ParsedReply:
        known = {tool.name for tool in tools}

        def read(text: str, found: re.Match[str]) -> Read | None:
            return self._read(text, found, known)

        return read_reply(text, _OPENERS, read, how=self.how, thinking=thinking)

    def _read(self, text: str, found: re.Match[str], known: set[str]) -> Read | None:
        marked = found[0] != "{"
        start = found.end() if marked else found.start()
        if marked and not text.startswith("{", start):
            return Read([broken("no JSON object stands after <|python_tag|>", self.how)], len(text))
        before = text[max(0, start - _LOOK_BACK) : start].rstrip()
        # Where there are no tools, JSON is an answer.
        meant = marked or (bool(known) and (not before or before.endswith((";", "</think>"))))
        try:
            value, end = decode_json(text, start)
        except ValueError as error:
            if not meant:
                return None
            return Read([broken(f"the call is not valid JSON ({error})", self.how)], len(text))
        inner = value.get("function")
        value = inner if isinstance(inner, dict) else value
        key = "arguments" if "arguments" in value and "parameters" not in value else "parameters"
        if not marked and key not in value and not _names(value, known):
            return None  # an answer that happens to be JSON
        after = _NEXT.match(text, end)
        return Read([call_of(value, key, self.how)], after.end() if after else end)


def _names(value: dict[str, Any], known: set[str]) -> bool:
    name = value.get("name")
    return isinstance(name, str) and name in known
