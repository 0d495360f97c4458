"""OpenAI's chat completions: ``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from prorl.capture import reading
from prorl.capture.reading import Content, refuse
from prorl.capture.talk import Answer, Asked, Called, Heard, Refusal

CALL = "call_"
ONE_REPLY = "one reply per call; for another sample send the same call again"
AS_SAMPLED = "the policy's replies are given whole, as they were sampled"


class Function(msgspec.Struct):
    name: str
    arguments: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Call(msgspec.Struct):
    function: Function
    id: str = ""


class Message(msgspec.Struct):
    role: str
    content: Content = None
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None


class Tool(msgspec.Struct):
    type: str = "function"
    function: Function | None = None


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class Body(msgspec.Struct):
    messages: list[Message]
    model: str = ""
    tools: list[Tool] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


def check_sampling(given: dict[str, Any]) -> None:
    reading.only(given, "n", 1, why=ONE_REPLY)
    reading.only(given, "logprobs", False, why="logprobs stand in the job's trajectory, not in answers")
    reading.only(given, "top_logprobs", 0, why="logprobs stand in the job's trajectory, not in answers")
    reading.only(given, "stop", [], "", why=f"no stop strings: {AS_SAMPLED}")
    reading.only(given, "logit_bias", {}, why=AS_SAMPLED)
    reading.only(given, "response_format", {"type": "text"}, why=f"no constrained decoding: {AS_SAMPLED}")
    reading.only(given, "modalities", ["text"], why="this policy writes text")
    reading.only(given, "audio", why="this policy writes text")
    reading.only(given, "functions", [], why="the older form of tools; send 'tools'")
    reading.only(given, "function_call", why="the older form of tools; send 'tools'")
    reading.only(given, "tool_choice", "auto", "none", why="a call cannot be forced: leave it at 'auto'")


class ChatCompletions:
    name = "chat"

    def parse(self, raw: bytes) -> Asked:
        body, given = reading.decode(raw, Body)
        check_sampling(given)
        for field in ("max_tokens", "max_completion_tokens"):
            if (asked := getattr(body, field)) is not None and asked < 1:
                refuse(field, "must be at least 1")
        limits = [limit for limit in (body.max_tokens, body.max_completion_tokens) if limit is not None]
        wants = {"stream"} if body.stream else set()
        wants |= {"usage"} if body.stream_options and body.stream_options.include_usage else set()
        wants |= {"no_calls"} if given.get("tool_choice") == "none" else set()
        return Asked(
            model=body.model,
            messages=tuple(_heard(message, f"messages[{i}]") for i, message in enumerate(body.messages)),
            tools=tuple(_tool(tool, f"tools[{i}]") for i, tool in enumerate(body.tools or ())),
            max_tokens=min(limits, default=None),
            wants=frozenset(wants),
            ignored=reading.ignored(
                given, *Body.__struct_fields__, "n", "stop", "logprobs", "response_format", "tool_choice", "modalities"
            ),
        )

    def answer(self, asked: Asked, answer: Answer) -> bytes:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text or None, "refusal": None}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = [_call(call) for call in answer.calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(answer)}
        return reading.dump({**_head(asked, answer, "chat.completion"), "choices": [choice], "usage": _usage(answer)})

    def stream(self, asked: Asked, answer: Answer) -> Iterator[bytes]:
        head = _head(asked, answer, "chat.completion.chunk")

        def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            return reading.event({**head, "choices": [choice]})

        yield chunk({"role": "assistant", "content": None if answer.calls and not answer.text else ""})
        for piece in reading.pieces(answer.reasoning):
            yield chunk({"reasoning_content": piece})
        for piece in reading.pieces(answer.text):
            yield chunk({"content": piece})
        for index, call in enumerate(answer.calls):
            whole = _call(call)
            function = {"name": call.name, "arguments": ""}
            yield chunk({"tool_calls": [{**whole, "index": index, "function": function}]})
            for piece in reading.pieces(call.arguments):
                yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        yield chunk({}, _finish(answer))
        if "usage" in asked.wants:
            yield reading.event({**head, "choices": [], "usage": _usage(answer)})
        yield reading.event(b"[DONE]")

    def keep_alive(self) -> bytes:
        return b": still sampling\n\n"

    def refusal(self, refusal: Refusal) -> bytes:
        return reading.dump({"error": openai_error(refusal)})

    def late_refusal(self, refusal: Refusal) -> bytes:
        """For a stream that has begun."""
        return reading.event({"error": openai_error(refusal)})


def openai_error(refusal: Refusal) -> dict[str, Any]:
    kinds = {"unauthorized": "authentication_error", "forbidden": "permission_error", "unavailable": "server_error"}
    codes = {"unauthorized": "invalid_api_key", "unknown": "not_found"}
    return {
        "message": refusal.message,
        "type": "server_error" if refusal.status >= 500 else kinds.get(refusal.kind, "invalid_request_error"),
        "param": refusal.field,
        "code": refusal.code or codes.get(refusal.kind),
    }


def _heard(message: Message, at: str) -> Heard:
    roles = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
    if message.role not in roles:
        refuse(f"{at}.role", f"{message.role[:50]!r} is not one of {', '.join(roles)}")
    return Heard(
        role=roles[message.role],  # type: ignore[arg-type]
        text=reading.text_of(message.content, f"{at}.content", known=("text", "refusal")),
        calls=tuple(
            reading.bare(Called(id=call.id, name=call.function.name, arguments=call.function.arguments), CALL)
            for call in message.tool_calls or ()
        ),
        call_id=message.tool_call_id.removeprefix(CALL) if message.tool_call_id else None,
    )


def _tool(tool: Tool, at: str) -> Any:
    if tool.type != "function" or tool.function is None:
        refuse(f"{at}.type", f"{tool.type[:50]!r} is not supported: only functions are")
    return reading.tool_schema(tool.function.name, tool.function.description, tool.function.parameters)


def _head(asked: Asked, answer: Answer, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer.id}", "object": kind, "created": answer.created, "model": asked.model}


def _call(call: Called) -> dict[str, Any]:
    return {
        "id": f"{CALL}{call.id}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _finish(answer: Answer) -> str:
    if answer.finish == "length":
        return "length"
    return "tool_calls" if answer.calls else "stop"


def _usage(answer: Answer) -> dict[str, int]:
    total = answer.prompt_tokens + answer.tokens
    return {"prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.tokens, "total_tokens": total}
