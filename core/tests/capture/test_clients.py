"""The SDKs, sync and async, streaming and not: what they get, and that all tokens of it are the sampled ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest

QUESTION = "What is the weather in Paris and in Rome?"
CALLS = (
    "I will look.\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "days": 1.0}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>'
)
POLICY = [CALLS, "<think>Rain, sun.</think>Rain in Paris, sun in Rome.", "You are welcome."]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "number"}}}
WEATHER = {"Paris": "rain", "Rome": "sun"}


class OpenAIChat:
    """An agent on chat completions."""

    def __init__(self, job: Any) -> None:
        self.options = {"base_url": f"{job.url}/v1", "api_key": job.key}
        self.tools = [{"type": "function", "function": {"name": "weather", "description": "?", "parameters": SCHEMA}}]
        self.messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]

    def asks(self) -> dict[str, Any]:
        return {"model": "any", "messages": self.messages, "tools": self.tools}

    def sync(self) -> Any:
        with openai.OpenAI(**self.options) as client:
            return client.chat.completions.create(**self.asks())

    def sync_stream(self) -> Any:
        with (
            openai.OpenAI(**self.options) as client,
            client.chat.completions.stream(**self.asks(), stream_options={"include_usage": True}) as stream,
        ):
            return stream.until_done().get_final_completion()

    async def asynchronous(self) -> Any:
        async with openai.AsyncOpenAI(**self.options) as client:
            return await client.chat.completions.create(**self.asks())

    async def asynchronous_stream(self) -> Any:
        async with (
            openai.AsyncOpenAI(**self.options) as client,
            client.chat.completions.stream(**self.asks(), stream_options={"include_usage": True}) as stream,
        ):
            return await stream.get_final_completion()

    def heard(self, said: Any) -> tuple[str, list[tuple[str, Any]], str, int, int]:
        choice = said.choices[0]
        self.messages.append(choice.message.model_dump(exclude_none=True))
        calls = [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls or ()]
        for call in choice.message.tool_calls or ():
            city = json.loads(call.function.arguments)["city"]
            self.messages.append({"role": "tool", "tool_call_id": call.id, "content": WEATHER[city]})
        text = choice.message.content or ""
        return text, calls, choice.finish_reason, said.usage.prompt_tokens, said.usage.completion_tokens

    def say(self, text: str) -> None:
        self.messages.append({"role": "user", "content": [{"type": "text", "text": text}]})


class OpenAIResponses(OpenAIChat):
    def __init__(self, job: Any) -> None:
        super().__init__(job)
        self.tools = [
            {"type": "function", "name": "weather", "description": "?", "parameters": SCHEMA, "strict": False}
        ]
        self.messages = [{"role": "user", "content": QUESTION}]

    def asks(self) -> dict[str, Any]:
        return {"model": "any", "instructions": "Be brief.", "input": self.messages, "tools": self.tools}

    def sync(self) -> Any:
        with openai.OpenAI(**self.options) as client:
            return client.responses.create(**self.asks())

    def sync_stream(self) -> Any:
        with openai.OpenAI(**self.options) as client, client.responses.stream(**self.asks()) as stream:
            return stream.until_done().get_final_response()

    async def asynchronous(self) -> Any:
        async with openai.AsyncOpenAI(**self.options) as client:
            return await client.responses.create(**self.asks())

    async def asynchronous_stream(self) -> Any:
        async with openai.AsyncOpenAI(**self.options) as client, client.responses.stream(**self.asks()) as stream:
            return await stream.get_final_response()

    def heard(self, said: Any) -> tuple[str, list[tuple[str, Any]], str, int, int]:
        made = [item for item in said.output if item.type == "function_call"]
        self.messages += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in said.output]
        for call in made:
            output = WEATHER[json.loads(call.arguments)["city"]]
            self.messages.append({"type": "function_call_output", "call_id": call.call_id, "output": output})
        calls = [(call.name, json.loads(call.arguments)) for call in made]
        assert said.status == "completed"
        stop = "tool_calls" if calls else "stop"
        return said.output_text, calls, stop, said.usage.input_tokens, said.usage.output_tokens

    def say(self, text: str) -> None:
        self.messages.append({"role": "user", "content": [{"type": "input_text", "text": text}]})


class FollowingResponses(OpenAIResponses):
    """Sends only what is new, after ``previous_response_id``."""

    previous: str | None = None

    def asks(self) -> dict[str, Any]:
        more = {} if self.previous is None else {"previous_response_id": self.previous}
        return {**super().asks(), **more}

    def heard(self, said: Any) -> Any:
        self.previous, self.messages = said.id, []
        result = super().heard(said)
        self.messages = [item for item in self.messages if item.get("type") == "function_call_output"]
        return result


class Anthropic(OpenAIChat):
    def __init__(self, job: Any) -> None:
        self.options = {"base_url": job.url, "api_key": job.key}
        self.tools = [{"name": "weather", "description": "?", "input_schema": SCHEMA}]
        self.messages = [{"role": "user", "content": QUESTION}]

    def asks(self) -> dict[str, Any]:
        thinking = {"type": "enabled", "budget_tokens": 1024}
        system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
        more = {"max_tokens": 500, "thinking": thinking}
        return {"model": "any", "system": system, "messages": self.messages, "tools": self.tools, **more}

    def sync(self) -> Any:
        with anthropic.Anthropic(**self.options) as client:
            return client.messages.create(**self.asks())

    def sync_stream(self) -> Any:
        with anthropic.Anthropic(**self.options) as client, client.messages.stream(**self.asks()) as stream:
            return stream.get_final_message()

    async def asynchronous(self) -> Any:
        async with anthropic.AsyncAnthropic(**self.options) as client:
            return await client.messages.create(**self.asks())

    async def asynchronous_stream(self) -> Any:
        async with anthropic.AsyncAnthropic(**self.options) as client, client.messages.stream(**self.asks()) as stream:
            return await stream.get_final_message()

    def heard(self, said: Any) -> tuple[str, list[tuple[str, Any]], str, int, int]:
        self.messages.append({"role": "assistant", "content": said.content})
        made = [block for block in said.content if block.type == "tool_use"]
        if made:
            results = [
                {"type": "tool_result", "tool_use_id": call.id, "content": WEATHER[call.input["city"]]} for call in made
            ]
            self.messages.append({"role": "user", "content": results})
        text = "".join(block.text for block in said.content if block.type == "text")
        stop = {"tool_use": "tool_calls", "end_turn": "stop"}[said.stop_reason]
        return text, [(c.name, c.input) for c in made], stop, said.usage.input_tokens, said.usage.output_tokens

    def say(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})


AGENTS = [OpenAIChat, OpenAIResponses, FollowingResponses, Anthropic]
WAYS = ["sync", "sync_stream", "asynchronous", "asynchronous_stream"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", AGENTS)
def test_tools_in_a_conversation(
    house: Callable[..., Any], exact: Callable[..., None], kind: type[OpenAIChat], way: str
) -> None:
    with house(POLICY) as house, house.job() as job:
        agent = kind(job)
        turns = []
        for text in (None, None, "Thanks."):
            if text is not None:
                agent.say(text)
            said = getattr(agent, way)()
            turns.append(agent.heard(asyncio.run(said) if way.startswith("async") else said))
    assert job.result.error is None
    looked, told, welcome = turns
    assert looked[0].strip() == "I will look."
    assert looked[1:3] == (
        [("weather", {"city": "Paris", "days": 1.0}), ("weather", {"city": "Rome", "days": 2})],
        "tool_calls",
    )
    assert told[:3] == ("Rain in Paris, sun in Rome.", [], "stop")
    assert welcome[:3] == ("You are welcome.", [], "stop")
    trajectory = job.result.trajectory
    assert [turn.role for turn in trajectory.turns] == ["prompt", "assistant", "tool", "assistant", "user", "assistant"]
    assert len(trajectory.segments) == 1
    replies = [turn for turn in trajectory.turns if turn.role == "assistant"]
    assert [turn[3:] for turn in turns] == [(turn.start, turn.end - turn.start) for turn in replies]
    assert "rain" in trajectory.turns[2].text
    assert "sun" in trajectory.turns[2].text
    exact(house, job.result)


def test_thinking_is_shown_and_need_not_come_back(house, exact, sdk):
    with house(["<think>Hm.</think>Yes.", "Still yes.", "And again."]) as house, house.job() as job:
        client = sdk(openai.OpenAI, base_url=f"{job.url}/v1", api_key=job.key)
        messages: list[Any] = [{"role": "user", "content": "Well?"}]
        said = client.chat.completions.create(model="any", messages=messages).choices[0].message
        assert (said.content, said.reasoning_content) == ("Yes.", "Hm.")
        messages += [{"role": "assistant", "content": " Yes.\n"}, {"role": "user", "content": "Really?"}]
        client.chat.completions.create(model="any", messages=messages)
    assert len(job.result.trajectory.segments) == 1
    exact(house, job.result)


def test_cut_replies_say_so_in_each_apis_words(house, sdk):
    with house(lambda request: "word " * 100) as house, house.job(sampling_params={"max_tokens": 20}) as job:
        chat, responses, messages = OpenAIChat(job), OpenAIResponses(job), Anthropic(job)
        chat.tools, responses.tools, messages.tools = [], [], []
        client = sdk(openai.OpenAI, **chat.options)
        said = client.chat.completions.create(model="any", messages=chat.messages, max_completion_tokens=7)
        assert (said.choices[0].finish_reason, said.usage.completion_tokens) == ("length", 7)
        said = client.responses.create(model="any", input="Again?", max_output_tokens=9)
        assert (said.status, said.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert said.usage.output_tokens == 9
        said = sdk(anthropic.Anthropic, **messages.options).messages.create(
            **messages.asks()
        )  # asks for 500: the job's 20
        assert (said.stop_reason, said.usage.output_tokens) == ("max_tokens", 20)
    assert job.result.error is None


def test_the_jobs_sampling_rules(house, sdk):
    with house(["a"]) as house, house.job(sampling_params={"temperature": 0.7}) as job:
        client = sdk(openai.OpenAI, base_url=f"{job.url}/v1", api_key=job.key)
        asked = [{"role": "user", "content": "a?"}]
        client.chat.completions.create(
            model="any", messages=asked, temperature=0.1, top_p=0.5, seed=1, user="me", extra_body={"mood": "fine"}
        )
    assert house.engine.requests[0].sampling["temperature"] == 0.7
    assert job.metrics["ignored"] == {"mood": 1, "seed": 1, "temperature": 1, "top_p": 1, "user": 1}


def test_counting_tokens_records_nothing(house, sdk):
    with house(["Sunny."]) as house, house.job() as job:
        agent = Anthropic(job)
        client = sdk(anthropic.Anthropic, **agent.options)
        asked = {name: value for name, value in agent.asks().items() if name != "max_tokens"}
        counted = client.messages.count_tokens(**asked).input_tokens
        assert counted == client.messages.create(**agent.asks()).usage.input_tokens
    assert len(job.result.trajectory.segments) == 1
    assert job.metrics["calls"] == 1


BROKEN = '<tool_call>\n{"name": "weather", "arguments": {\n</tool_call>'
WHOLE = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


def test_calls_that_cannot_be_read_are_text_to_the_agent(house, exact, sdk):
    """And what the agent sends back of them is found again."""
    replies = iter([f"Hm. {BROKEN}", f"{WHOLE}\n{BROKEN}", f"So: {WHOLE}"])
    with house(lambda request: next(replies)) as house, house.job() as job:
        agent = OpenAIChat(job)
        client = sdk(openai.OpenAI, **agent.options)
        first = client.chat.completions.create(**agent.asks())
        assert first.choices[0].message.content == f"Hm. {BROKEN}"
        assert agent.heard(first)[1:3] == ([], "stop")
        agent.say("That was no call.")
        second = client.chat.completions.create(**agent.asks())
        assert agent.heard(second)[1] == [("weather", {"city": "Rome"})]
        agent.tools = []  # of no use to an agent that offers none: another conversation, and text
        third = client.chat.completions.create(model="any", messages=agent.messages)
        assert third.choices[0].message.content == f"So: {WHOLE}"
    assert job.metrics["broken_calls"] == 2
    assert len(job.result.trajectory.segments) == 2
    exact(house, job.result)
