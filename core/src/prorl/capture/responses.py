"""OpenAI's responses: ``POST /v1/responses``. What is asked with ``previous_response_id`` goes on from that answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from prorl.capture import reading
from prorl.capture.chat_completions import AS_SAMPLED, CALL, openai_error
from prorl.capture.reading import Content, refuse
from prorl.capture.talk import Answer, Asked, Called, Heard, Refusal

ROLES = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}
HONOURED = ("background", "store", "tool_choice", "top_logprobs")
TEXT = ("input_text", "output_text", "text", "refusal")


class Item(msgspec.Struct):
    type: str = "message"
    role: str = ""
    content: Content = None
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    output: Content = None


class Tool(msgspec.Struct):
    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Text(msgspec.Struct):
    format: dict[str, Any] | None = None


class Body(msgspec.Struct):
    input: str | list[Item] = ""
    model: str = ""
    instructions: str | None = None
    tools: list[Tool] | None = None
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    text: Text | None = None
    stream: bool | None = None


class Responses:
    name = "responses"

    def parse(self, raw: bytes) -> Asked:
        body, given = reading.decode(raw, Body)
        reading.only(given, "background", False, why="answers are waited for: leave it out")
        reading.only(given, "conversation", why="nothing is stored here: send the input, or previous_response_id")
        reading.only(given, "prompt", why="nothing is stored here: send instructions and input")
        reading.only(given, "top_logprobs", 0, why="logprobs stand in the job's trajectory, not in answers")
        reading.only(given, "tool_choice", "auto", "none", why="a call cannot be forced: leave it at 'auto'")
        if body.text is not None and (body.text.format or {}).get("type", "text") != "text":
            refuse("text.format", f"no constrained decoding: {AS_SAMPLED}")
        if body.max_output_tokens is not None and body.max_output_tokens < 1:
            refuse("max_output_tokens", "must be at least 1")
        wants = {"stream"} if body.stream else set()
        wants |= {"no_calls"} if given.get("tool_choice") == "none" else set()
        wants |= set() if given.get("store") is False else {"kept"}
        lead = (Heard(role="system", text=body.instructions),) if body.instructions else ()
        items = [Item(role="user", content=body.input)] if isinstance(body.input, str) else body.input
        return Asked(
            model=body.model,
            messages=(*lead, *_heard(items)),
            tools=tuple(_tool(tool, f"tools[{i}]") for i, tool in enumerate(body.tools or ())),
            max_tokens=body.max_output_tokens,
            wants=frozenset(wants),
            ignored=reading.ignored(given, *Body.__struct_fields__, *HONOURED),
            follows=body.previous_response_id.removeprefix("resp_") if body.previous_response_id else None,
        )

    def answer(self, asked: Asked, answer: Answer) -> bytes:
        return reading.dump(_response(asked, answer, done=True))

    def stream(self, asked: Asked, answer: Answer) -> Iterator[bytes]:
        count = 0

        def event(name: str, /, **data: Any) -> bytes:
            nonlocal count
            count += 1
            return reading.event({"type": name, "sequence_number": count - 1, **data}, name)

        yield event("response.created", response=_response(asked, answer, done=False))
        yield event("response.in_progress", response=_response(asked, answer, done=False))
        for index, item in enumerate(_output(answer)):
            at = {"item_id": item["id"], "output_index": index}
            empty: dict[str, Any] = {"arguments": ""} if item["type"] == "function_call" else {"content": []}
            begun = {**item, "status": "in_progress", **empty}
            yield event("response.output_item.added", output_index=index, item=begun)
            if item["type"] == "function_call":
                for piece in reading.pieces(item["arguments"]):
                    yield event("response.function_call_arguments.delta", **at, delta=piece)
                done = {"name": item["name"], "arguments": item["arguments"]}
                yield event("response.function_call_arguments.done", **at, **done)
            else:
                (part,) = item["content"]
                kind = "output_text" if part["type"] == "output_text" else "reasoning_text"
                more: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
                at["content_index"] = 0
                yield event("response.content_part.added", **at, part={**part, "text": ""})
                for piece in reading.pieces(part["text"]):
                    yield event(f"response.{kind}.delta", **at, delta=piece, **more)
                yield event(f"response.{kind}.done", **at, text=part["text"], **more)
                yield event("response.content_part.done", **at, part=part)
            yield event("response.output_item.done", output_index=index, item=item)
        response = _response(asked, answer, done=True)
        yield event(f"response.{response['status']}", response=response)

    def keep_alive(self) -> bytes:
        return b": still sampling\n\n"

    def refusal(self, refusal: Refusal) -> bytes:
        return reading.dump({"error": openai_error(refusal)})

    def late_refusal(self, refusal: Refusal) -> bytes:
        error = openai_error(refusal)
        about = {"code": error["code"] or error["type"], "message": error["message"], "param": error["param"]}
        return reading.event({"type": "error", "sequence_number": 0, **about}, "error")


def _heard(items: list[Item]) -> Iterator[Heard]:
    """Items to messages: what an assistant said and called in one go is one message."""
    spoken: Heard | None = None
    for number, item in enumerate(items):
        at = f"input[{number}]"
        part = _item(item, at)
        if part is None:
            continue
        if part.role == "assistant" and spoken is not None:
            text = "\n".join(text for text in (spoken.text, part.text) if text)
            spoken = msgspec.structs.replace(spoken, text=text, calls=(*spoken.calls, *part.calls))
            continue
        if spoken is not None:
            yield spoken
        spoken = part if part.role == "assistant" else None
        if spoken is None:
            yield part
    if spoken is not None:
        yield spoken


def _item(item: Item, at: str) -> Heard | None:
    """``None`` for reasoning: it stands on the token stream."""
    if item.type not in ("message", "function_call", "function_call_output", "reasoning"):
        refuse(f"{at}.type", f"{item.type[:50]!r} is not supported")
    if item.type == "reasoning":
        return None
    call_id = item.call_id.removeprefix(CALL)
    if item.type == "function_call":
        call = Called(id=call_id, name=item.name, arguments=item.arguments)
        return Heard(role="assistant", text="", calls=(call,))
    if item.type == "function_call_output":
        return Heard(role="tool", text=reading.text_of(item.output, f"{at}.output", known=TEXT), call_id=call_id)
    if item.role not in ROLES:
        refuse(f"{at}.role", f"{item.role[:50]!r} is not one of {', '.join(ROLES)}")
    text = reading.text_of(item.content, f"{at}.content", known=TEXT)
    return Heard(role=ROLES[item.role], text=text)  # type: ignore[arg-type]


def _tool(tool: Tool, at: str) -> Any:
    if tool.type != "function":
        refuse(f"{at}.type", f"{tool.type[:50]!r} is not supported: only functions are; switch it off in the agent")
    return reading.tool_schema(tool.name, tool.description, tool.parameters)


def _response(asked: Asked, answer: Answer, *, done: bool) -> dict[str, Any]:
    cut = answer.finish == "length"
    response: dict[str, Any] = {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": answer.created,
        "status": "in_progress",
        "model": asked.model,
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "none" if "no_calls" in asked.wants else "auto",
        "tools": [{"type": "function", "strict": False, **msgspec.to_builtins(tool)} for tool in asked.tools],
        "previous_response_id": f"resp_{asked.follows}" if asked.follows else None,
        "error": None,
        "incomplete_details": None,
        "usage": None,
    }
    if done:
        response |= {
            "status": "incomplete" if cut else "completed",
            "output": _output(answer),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "usage": {
                "input_tokens": answer.prompt_tokens,
                "output_tokens": answer.tokens,
                "total_tokens": answer.prompt_tokens + answer.tokens,
            },
        }
    return response


def _output(answer: Answer) -> list[dict[str, Any]]:
    status = "incomplete" if answer.finish == "length" else "completed"
    output: list[dict[str, Any]] = []
    if answer.reasoning:
        thought = {"type": "reasoning_text", "text": answer.reasoning}
        output.append({"id": f"rs_{answer.id}", "type": "reasoning", "summary": [], "content": [thought]})
    if answer.text or not answer.calls:
        said = {"type": "output_text", "text": answer.text, "annotations": []}
        output.append(
            {"id": f"msg_{answer.id}", "type": "message", "role": "assistant", "status": status, "content": [said]}
        )
    for call in answer.calls:
        about = {"call_id": f"{CALL}{call.id}", "name": call.name, "arguments": call.arguments}
        output.append({"id": f"fc_{call.id}", "type": "function_call", "status": "completed", **about})
    return output
