"""OpenAI's chat completions: what is asked, what is read, and how a server's refusals are met."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest

from prorl.api import ContextOverflow, Conversation, GenerationRequest, Message, ModelFault, ToolSchema
from prorl.llm.dialects.messages import chat_messages
from prorl.llm.dialects.openai_chat import OpenAiChat
from prorl.testing.httpd import HttpServer, Response, error_response, json_response
from prorl.wire import SamplingParams, ToolCall

TALK = Conversation(messages=(Message(role="user", content="How many?"),))
LOOK = ToolSchema(name="look", description="Look.", parameters={"type": "object", "properties": {}})
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Two."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
}


def answer(message: dict[str, Any] | None = None, **choice: Any) -> dict[str, Any]:
    given = {**ANSWER["choices"][0], **choice}
    return {**ANSWER, "choices": [{**given, "message": message or given["message"]}]}


class Picky(HttpServer):
    """Answers, or refuses, by what ``reply`` says of the body."""

    def __init__(self, reply: Callable[[dict[str, Any]], Response | dict[str, Any]]) -> None:
        super().__init__()
        self.reply = reply
        self.bodies: list[dict[str, Any]] = []

    async def handle(self, request):
        self.bodies.append(msgspec.json.decode(request.body))
        said = self.reply(self.bodies[-1])
        return said if isinstance(said, Response) else json_response(said)


async def ask(reply: Any, *, talk: Conversation = TALK, times: int = 1, **sampling: Any):
    with Picky(reply) as server:
        async with httpx.AsyncClient() as client:
            dialect = OpenAiChat(client, server.url, model="m")
            for _ in range(times):
                request = GenerationRequest(
                    prompt_ids=[],
                    sampling=SamplingParams(**sampling),
                    request_id="r",
                    session_id="s",
                    conversation=talk,
                )
                generation = await dialect.generate(request)
        return generation, server.bodies


async def test_text():
    generation, (body,) = await ask(lambda _: ANSWER, max_tokens=9, seed=5, temperature=0.5)
    assert (generation.text, generation.finish, generation.token_ids) == ("Two.", "stop", [])
    assert (generation.prompt_echo, generation.tool_calls) == (None, None)
    assert body["messages"] == [{"role": "user", "content": "How many?"}]
    assert (body["model"], body["max_tokens"], body["seed"], body["temperature"]) == ("m", 9, 5, 0.5)
    assert "tools" not in body


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("stop", "stop"), ("length", "length"), ("tool_calls", "stop"), ("content_filter", "abort")],
)
async def test_how_a_reply_ends(reason, finish):
    generation, _ = await ask(lambda _: answer(finish_reason=reason))
    assert generation.finish == finish


async def test_calls_and_thinking():
    def call(name: str, arguments: Any) -> dict[str, Any]:
        return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}

    calls = [call("look", '{"where": "here"}'), call("look", '{"where": '), call("look", "[1]"), call("look", "")]
    message = {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": calls}
    generation, _ = await ask(lambda _: answer(message, finish_reason="tool_calls"))
    assert generation.text == "<think>\nHm.\n</think>\n\n"
    right, cut, no_object, none = generation.tool_calls
    assert right == ToolCall(name="look", arguments={"where": "here"})
    assert "no valid JSON" in cut.error
    assert "not a JSON object" in no_object.error
    assert none == ToolCall(name="look")


async def test_a_server_without_a_parser_still_shows_the_tools():
    """vLLM without --enable-auto-tool-choice: its text is parsed here then."""

    def reply(body: dict[str, Any]) -> Response | dict[str, Any]:
        if body.get("tool_choice") == "none":
            return ANSWER
        return error_response(400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser')

    talk = Conversation(messages=TALK.messages, tools=(LOOK,))
    generation, bodies = await ask(reply, talk=talk, times=2)
    assert generation.text == "Two."
    assert [body.get("tool_choice") for body in bodies] == [None, "none", "none"]
    assert all(body["tools"][0]["function"]["name"] == "look" for body in bodies)
    assert all("return_token_ids" in body for body in bodies)  # that was not what it refused


async def test_the_new_name_of_the_limit():
    def reply(body: dict[str, Any]) -> Response | dict[str, Any]:
        if "max_tokens" in body:
            return error_response(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
        return ANSWER

    _, bodies = await ask(reply, times=2, max_tokens=9)
    assert [body.get("max_completion_tokens") for body in bodies] == [None, 9, 9]


async def test_what_a_server_does_not_know_is_left_out_once_it_said_so():
    def reply(body: dict[str, Any]) -> Response | dict[str, Any]:
        return error_response(422, "extra fields not permitted: top_k") if "top_k" in body else ANSWER

    _, bodies = await ask(reply, times=2)
    assert ["top_k" in body for body in bodies] == [True, False, False]


@pytest.mark.parametrize(
    "text",
    [
        "This model's maximum context length is 4096 tokens. However, your messages resulted in 5000 tokens.",
        "Requested token count exceeds the model's maximum context length of 4096 tokens.",
        "the request exceeds the available context size. try increasing the context size",
        "Please reduce the length of the messages or completion.",
        '{"code": "context_length_exceeded"}',
    ],
)
async def test_an_overflow_in_many_words(text):
    with pytest.raises(ContextOverflow):
        await ask(lambda _: error_response(400, text))


async def test_a_refusal_for_another_reason_is_no_overflow():
    with pytest.raises(ModelFault, match="no such model") as caught:
        await ask(lambda _: error_response(400, "no such model"))
    assert not isinstance(caught.value, ContextOverflow)
    assert caught.value.code == "rejected"


async def test_ids_without_logprobs_are_no_ids():
    whole = {**answer(token_ids=[5, 6]), "prompt_token_ids": [1, 2, 3]}
    generation, _ = await ask(lambda _: whole)
    assert (generation.token_ids, generation.prompt_echo) == ([], None)
    logprobs = {"content": [{"token": "token_id:5", "logprob": -1.0}, {"token": "token_id:6", "logprob": -2.0}]}
    generation, _ = await ask(lambda _: {**answer(token_ids=[5, 6], logprobs=logprobs), "prompt_token_ids": [1, 2, 3]})
    assert (generation.token_ids, generation.logprobs) == ([5, 6], [-1.0, -2.0])
    assert (generation.prompt_echo, generation.stop_token) == ([1, 2, 3], 6)
    generation, _ = await ask(lambda _: answer(token_ids=[5, 6], logprobs=logprobs))  # after which prompt?
    assert (generation.token_ids, generation.prompt_echo) == ([], None)


def test_a_conversation_as_messages():
    calls = (ToolCall(name="look", arguments={"at": "a"}), ToolCall(name="look", error="broken"))
    talk = [
        Message(role="system", content="s"),
        Message(role="user", content="u"),
        Message(role="assistant", content="Looking.", tool_calls=calls),
        Message(role="tool", name="look", content="1"),
        Message(role="tool", name="look", content="2"),
        Message(role="tool", name="look", content="of nothing"),
        Message(role="assistant", content="", tool_calls=calls[:1]),
        Message(role="tool", name="look", content="3", tool_call_id="call_2"),
    ]
    sent = chat_messages(talk)
    assert [message["role"] for message in sent] == [
        *("system", "user", "assistant", "tool", "tool", "user", "assistant", "tool")
    ]
    assert [call["id"] for call in sent[2]["tool_calls"]] == ["call_0", "call_1"]
    assert [call["function"]["arguments"] for call in sent[2]["tool_calls"]] == ['{"at":"a"}', "{}"]
    assert [message.get("tool_call_id") for message in sent[3:]] == ["call_0", "call_1", None, None, "call_2"]
    kept = chat_messages(talk, as_they_are=True)
    assert [message["role"] for message in kept] == [message.role for message in talk]
    assert [message.get("tool_call_id") for message in kept[3:]] == ["call_0", "call_1", "none", None, "call_2"]
