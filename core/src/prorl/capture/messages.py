"""Anthropic's messages: ``POST /v1/messages``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from prorl.capture import reading
from prorl.capture.chat_completions import AS_SAMPLED
from prorl.capture.reading import Content, refuse
from prorl.capture.talk import Answer, Asked, Called, Heard, Refusal

CALL = "toolu_"
READ = frozenset(("text", "tool_use", "tool_result", "thinking", "redacted_thinking"))


class Block(msgspec.Struct):
    type: str
    text: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, Any] = {}
    tool_use_id: str = ""
    content: Content = None


class Message(msgspec.Struct):
    role: str
    content: str | list[Block]


class Tool(msgspec.Struct):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class Thinking(msgspec.Struct):
    type: str = ""


class Choice(msgspec.Struct):
    type: str = "auto"


class Body(msgspec.Struct):
    messages: list[Message]
    max_tokens: int | None = None
    model: str = ""
    system: Content = None
    tools: list[Tool] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    stream: bool | None = None


class Messages:
    name = "messages"

    def parse(self, raw: bytes) -> Asked:
        body, given = reading.decode(raw, Body)
        if body.max_tokens is None:
            refuse("max_tokens", "required field is missing")
        return self._asked(body, given)

    def parse_count(self, raw: bytes) -> Asked:
        return self._asked(*reading.decode(raw, Body))

    def count(self, tokens: int) -> bytes:
        return reading.dump({"input_tokens": tokens})

    def _asked(self, body: Body, given: dict[str, Any]) -> Asked:
        reading.only(given, "stop_sequences", [], why=f"no stop strings: {AS_SAMPLED}")
        reading.only(given, "mcp_servers", [], why="tools of servers are not run here; give the agent the tool")
        reading.only(given, "container", why="nothing is run here; give the agent the tool")
        reading.only(given, "output_format", why=f"no constrained decoding: {AS_SAMPLED}")
        if body.max_tokens is not None and body.max_tokens < 1:
            refuse("max_tokens", "must be at least 1")
        if body.tool_choice is not None and body.tool_choice.type not in ("auto", "none"):
            refuse("tool_choice.type", "a call cannot be forced: leave it at 'auto'")
        wants = {"stream"} if body.stream else set()
        wants |= {"thinking"} if body.thinking is not None and body.thinking.type in ("enabled", "adaptive") else set()
        wants |= {"no_calls"} if body.tool_choice is not None and body.tool_choice.type == "none" else set()
        system = reading.text_of(body.system, "system")
        lead = (Heard(role="system", text=system),) if system else ()
        said = (heard for i, message in enumerate(body.messages) for heard in _heard(message, f"messages[{i}]"))
        return Asked(
            model=body.model,
            messages=(*lead, *said),
            tools=tuple(_tool(tool, f"tools[{i}]") for i, tool in enumerate(body.tools or ())),
            max_tokens=body.max_tokens,
            wants=frozenset(wants),
            ignored=reading.ignored(given, *Body.__struct_fields__, "stop_sequences", "mcp_servers"),
        )

    def answer(self, asked: Asked, answer: Answer) -> bytes:
        usage = {"input_tokens": answer.prompt_tokens, "output_tokens": answer.tokens}
        return reading.dump(
            {**_head(asked, answer), "content": _content(asked, answer), "stop_reason": _stop(answer), "usage": usage}
        )

    def stream(self, asked: Asked, answer: Answer) -> Iterator[bytes]:
        def event(name: str, /, **data: Any) -> bytes:
            return reading.event({"type": name, **data}, name)

        usage = {"input_tokens": answer.prompt_tokens, "output_tokens": 0}
        yield event("message_start", message={**_head(asked, answer), "content": [], "usage": usage})
        for index, block in enumerate(_content(asked, answer)):
            empty, deltas = _streamed(block)
            yield event("content_block_start", index=index, content_block=empty)
            for delta in deltas:
                yield event("content_block_delta", index=index, delta=delta)
            yield event("content_block_stop", index=index)
        end = {"stop_reason": _stop(answer), "stop_sequence": None}
        yield event("message_delta", delta=end, usage={"output_tokens": answer.tokens})
        yield event("message_stop")

    def keep_alive(self) -> bytes:
        return reading.event({"type": "ping"}, "ping")

    def refusal(self, refusal: Refusal) -> bytes:
        return reading.dump(_error(refusal))

    def late_refusal(self, refusal: Refusal) -> bytes:
        return reading.event(_error(refusal), "error")


def _heard(message: Message, at: str) -> Iterator[Heard]:
    """A user's message may hold results of tools, which are messages of their own here, in their order."""
    if message.role not in ("user", "assistant", "system"):
        refuse(f"{at}.role", f"{message.role[:50]!r} is not one of user, assistant, system")
    blocks = [Block(type="text", text=message.content)] if isinstance(message.content, str) else message.content
    for number, block in enumerate(blocks):
        if block.type not in READ:
            refuse(f"{at}.content[{number}].type", f"{block.type[:50]!r} is not supported: this policy reads text")
    if message.role == "assistant":
        yield Heard(
            role="assistant",
            text="\n".join(block.text for block in blocks if block.type == "text"),
            calls=tuple(
                Called(
                    id=block.id.removeprefix(CALL), name=block.name, arguments=msgspec.json.encode(block.input).decode()
                )
                for block in blocks
                if block.type == "tool_use"
            ),
        )
        return
    texts: list[str] = []
    for number, block in enumerate(blocks):
        if block.type == "text":
            texts.append(block.text)
        elif block.type == "tool_result":
            if texts:
                yield Heard(role="user", text="\n".join(texts))
                texts = []
            result = reading.text_of(block.content, f"{at}.content[{number}].content")
            yield Heard(role="tool", text=result, call_id=block.tool_use_id.removeprefix(CALL))
    if texts:
        yield Heard(role="system" if message.role == "system" else "user", text="\n".join(texts))


def _tool(tool: Tool, at: str) -> Any:
    if tool.type not in (None, "custom"):
        refuse(f"{at}.type", f"{tool.type[:50]!r} is not known to this policy: describe the tool with an input_schema")
    return reading.tool_schema(tool.name, tool.description, tool.input_schema)


def _head(asked: Asked, answer: Answer) -> dict[str, Any]:
    return {
        "id": f"msg_{answer.id}",
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "stop_reason": None,
        "stop_sequence": None,
    }


def _content(asked: Asked, answer: Answer) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = []
    if answer.reasoning and "thinking" in asked.wants:
        content.append({"type": "thinking", "thinking": answer.reasoning, "signature": answer.id})
    if answer.text:
        content.append({"type": "text", "text": answer.text, "citations": None})
    for call in answer.calls:
        arguments = msgspec.json.decode(call.arguments)
        content.append({"type": "tool_use", "id": f"{CALL}{call.id}", "name": call.name, "input": arguments})
    return content


def _streamed(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it begins, and what is added to it."""
    if block["type"] == "tool_use":
        whole = msgspec.json.encode(block["input"]).decode()
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in reading.pieces(whole)]
        return {**block, "input": {}}, deltas
    if block["type"] == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in reading.pieces(block["thinking"])]
        signed = {"type": "signature_delta", "signature": block["signature"]}
        return {**block, "thinking": "", "signature": ""}, [*deltas, signed]
    deltas = [{"type": "text_delta", "text": piece} for piece in reading.pieces(block["text"])]
    return {**block, "text": ""}, deltas


def _stop(answer: Answer) -> str:
    if answer.finish == "length":
        return "max_tokens"
    return "tool_use" if answer.calls else "end_turn"


def _error(refusal: Refusal) -> dict[str, Any]:
    kinds = {
        "unauthorized": "authentication_error",
        "forbidden": "permission_error",
        "unknown": "not_found_error",
        "too_large": "request_too_large",
        "unavailable": "api_error",
        "broken": "api_error",
    }
    # Agents that compact their context know it by these words.
    message = f"prompt is too long: {refusal.message}" if refusal.kind == "context" else refusal.message
    return {"type": "error", "error": {"type": kinds.get(refusal.kind, "invalid_request_error"), "message": message}}
