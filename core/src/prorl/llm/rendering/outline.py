"""A conversation as its template is shown it: probes in place of all that somebody wrote.

Untrusted are the contents of messages, the names of tools, and every string in the arguments of calls and in the
descriptions of tools. What a template may look at stays as it is: roles, the shape of arguments, numbers, whether a
body is blank, and the tags of the thinking with which an assistant's message begins.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from prorl.api.llm import Message, ToolSchema
from prorl.llm.rendering.manners import Manners
from prorl.llm.rendering.scaffold import Probe
from prorl.wire.trajectory import ToolCall

_DEEPEST = 50  # no template can be trusted with arguments that are nested as deeply as a model may write them


class Outline:
    """``bodies[i]`` belongs where ``probes[i]`` stands; ``owners[i]`` is the role whose message is lost if a template
    leaves it out, ``None`` if that is the template's business. ``key`` is what a rendering depends on beside bodies;
    ``None``: too much to name."""

    def __init__(self, manners: Manners) -> None:
        self.messages: list[dict[str, Any]] = []
        self.probes: list[Probe] = []
        self.bodies: list[str] = []
        self.owners: list[str | None] = []
        self.key: list[Any] | None = []
        self._manners = manners
        self._tools: Sequence[ToolSchema] = ()
        self._after_tool = False
        self._results = 0

    def describe(self, tools: Sequence[ToolSchema]) -> None:
        """In the next system message."""
        self._tools = tools

    def ways(self) -> list[list[dict[str, Any]]]:
        """The messages in the forms that a template may want them in, the usual one first."""
        calls = any("tool_calls" in message for message in self.messages)
        return [self.messages, _with_text_arguments(self.messages)] if calls else [self.messages]

    def add(self, messages: Sequence[Message]) -> None:
        for message in messages:
            merge = message.role == "tool" and self._after_tool and not self._manners.tool_role
            self._add(message, merge=merge)
            self._after_tool = message.role == "tool"

    def body(self, text: str, owner: str | None) -> str:
        """What stands for ``text``. Blank text stays: it is harmless, and templates ask whether there is any."""
        if self.key is not None:
            self.key.append(None if text.strip() else text)
        if not text.strip():
            return text
        probe = Probe()
        self.probes.append(probe)
        self.bodies.append(text)
        self.owners.append(owner)
        return probe.text

    def _add(self, message: Message, *, merge: bool) -> None:
        role, manners = message.role, self._manners
        calls = [call for call in message.tool_calls if call.error is None] if role == "assistant" else []
        if self.key is not None:
            self.key.append((role, bool(message.name)))
        content = self._said(message.content, bool(calls)) if role == "assistant" else self.body(message.content, role)
        if role == "tool" and not manners.tool_role:
            role, content = "user", manners.tool_format.wrap_response(content)
        if merge:
            self.messages[-1]["content"] += "\n" + content
            return
        turn: dict[str, Any] = {"role": role, "content": content}
        if message.name:
            turn["name"] = self.body(message.name, None)
        if role == "tool":
            turn["tool_call_id"] = _call_id(self._results)  # ids of a client's mean nothing to a model
        self._results = self._results + 1 if role == "tool" else 0
        if role == "system" and self._tools:
            turn["content"] = "\n\n".join(part for part in (content, manners.tool_format.describe(self._tools)) if part)
            self._tools = ()
        if calls:
            self._call(turn, [self._covered(call) for call in calls])
        self.messages.append(turn)

    def _said(self, content: str, calls: bool) -> str:
        """An assistant's content. Beside calls some templates leave it out, and the thinking of earlier turns too."""
        owner = None if calls else "assistant"
        before, close, after = content.partition("</think>")
        if not close or not (self._manners.thinking or before.lstrip().startswith("<think>")):
            return self.body(content, owner)
        head, start, reasoning = before.partition("<think>")
        if not start:
            head, reasoning = "", before
        if self.key is not None:
            self.key.append(start)
        return self.body(head, None) + start + self.body(reasoning, None) + close + self.body(after, owner)

    def _call(self, turn: dict[str, Any], calls: Sequence[ToolCall]) -> None:
        self.key = None
        if not (self._manners.several if len(calls) > 1 else self._manners.calls):
            parts = (turn["content"], self._manners.tool_format.write(*calls))
            turn["content"] = "\n".join(part for part in parts if part)
            return
        turn["tool_calls"] = [
            {"id": _call_id(i), "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for i, call in enumerate(calls)
        ]

    def _covered(self, call: ToolCall) -> ToolCall:
        return ToolCall(name=self.body(call.name, "assistant"), arguments=self._cover(call.arguments))

    def _cover(self, value: Any, depth: int = 0) -> Any:
        match value:
            case str():
                return self.body(value, "assistant")
            case Mapping() | list() | tuple() if depth == _DEEPEST:
                return self.body(_json(value), "assistant")
            case Mapping():
                return {self.body(key, "assistant"): self._cover(item, depth + 1) for key, item in value.items()}
            case list() | tuple():
                return [self._cover(item, depth + 1) for item in value]
        return value


def _with_text_arguments(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same, with the arguments of calls as JSON in a string, which some templates expect (DeepSeek's)."""
    return [
        {
            **message,
            "tool_calls": [
                {**call, "function": {**call["function"], "arguments": _json(call["function"]["arguments"])}}
                for call in message["tool_calls"]
            ],
        }
        if "tool_calls" in message
        else dict(message)
        for message in messages
    ]


def _call_id(number: int) -> str:
    """Mistral's templates want nine letters or digits."""
    return f"call{number:05d}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
