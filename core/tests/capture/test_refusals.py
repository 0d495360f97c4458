"""What is not served is refused in each API's own form, so that SDKs raise their typed errors."""

from __future__ import annotations

import json
import threading
from typing import Any

import anthropic
import httpx
import openai
import pytest

from prorl.testing.scripted import ScriptedReply

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
CHAT = {"model": "any", "messages": HELLO}
RESPONSES = {"model": "any", "input": "Hello"}
MESSAGES = {"model": "any", "messages": HELLO, "max_tokens": 9}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


@pytest.fixture
def clients(sdk):
    def make(job, key=None):
        options = {"api_key": key or job.key, "max_retries": 0}
        return (
            sdk(openai.OpenAI, base_url=f"{job.url}/v1", **options),
            sdk(anthropic.Anthropic, base_url=job.url, **options),
        )

    return make


def test_keys_and_jobs(house, clients, sdk):
    with house(["never"]) as house, house.job() as job:
        one, other = clients(job, "sk-mine")
        with pytest.raises(openai.AuthenticationError, match="not the API key of this job"):
            one.chat.completions.create(**CHAT)
        with pytest.raises(openai.AuthenticationError):
            one.responses.create(**RESPONSES)
        with pytest.raises(anthropic.AuthenticationError):
            other.messages.create(**MESSAGES)
        assert httpx.get(f"{job.url}/v1/models").status_code == 401
        lost = sdk(openai.OpenAI, base_url=f"{job.url}x/v1", api_key=job.key, max_retries=0)
        with pytest.raises(openai.NotFoundError, match="has ended"):
            lost.chat.completions.create(**CHAT)
        one, _ = clients(job)
        assert [model.id for model in one.models.list()] == ["policy"]
        with pytest.raises(openai.NotFoundError, match="POST chat/completions"):
            one.embeddings.create(model="any", input="Hello")
    assert len(house.engine.requests) == 0
    assert job.metrics["refused"] == 4 + 1
    assert "401" in job.result.metrics["refusals"][0]


def test_addresses_with_and_without_v1(house):
    with house(lambda request: "Hello") as house, house.job() as job:
        for base in (job.url, f"{job.url}/v1", f"{job.url}/v1/v1"):
            response = httpx.post(f"{base}/chat/completions", json=CHAT, headers={"authorization": f"Bearer {job.key}"})
            assert response.status_code == 200, response.text


CASES = [
    ("chat/completions", {**CHAT, "n": 2}, "n"),
    ("chat/completions", {**CHAT, "logprobs": True}, "logprobs"),
    ("chat/completions", {**CHAT, "stop": ["x"]}, "stop"),
    ("chat/completions", {**CHAT, "response_format": {"type": "json_object"}}, "response_format"),
    ("chat/completions", {**CHAT, "tool_choice": "required"}, "tool_choice"),
    ("chat/completions", {**CHAT, "audio": {"voice": "x"}}, "audio"),
    ("chat/completions", {**CHAT, "functions": [{"name": "f"}]}, "functions"),
    ("chat/completions", {**CHAT, "max_tokens": 0}, "max_tokens"),
    ("chat/completions", {**CHAT, "messages": []}, "messages"),
    ("chat/completions", {**CHAT, "messages": "Hello"}, "messages"),
    ("chat/completions", {**CHAT, "messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].type"),
    ("chat/completions", {**CHAT, "messages": [{"role": "oracle", "content": ""}]}, "messages[0].role"),
    ("chat/completions", {**CHAT, "messages": [*HELLO, {"role": "assistant", "content": "Hi"}]}, "messages"),
    ("chat/completions", {**CHAT, "tools": [{"type": "custom"}]}, "tools[0].type"),
    ("responses", {**RESPONSES, "background": True}, "background"),
    ("responses", {**RESPONSES, "tools": [{"type": "web_search"}]}, "tools[0].type"),
    ("responses", {**RESPONSES, "input": [{"type": "item_reference"}]}, "input[0].type"),
    ("responses", {**RESPONSES, "text": {"format": {"type": "json_schema"}}}, "text.format"),
    ("responses", {**RESPONSES, "input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content"),
    ("messages", {**MESSAGES, "stop_sequences": ["x"]}, "stop_sequences"),
    ("messages", {**MESSAGES, "tool_choice": {"type": "any"}}, "tool_choice.type"),
    ("messages", {**MESSAGES, "tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
    ("messages", {"model": "any", "messages": HELLO}, "max_tokens"),
    ("messages", {**MESSAGES, "messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content"),
]


def test_fields_that_cannot_be_honoured_are_named(house):
    with house(["never"]) as house, house.job() as job:
        for what, body, field in CASES:
            answer = httpx.post(f"{job.url}/v1/{what}", json=body, headers={"x-api-key": job.key})
            assert answer.status_code == 400, (body, answer.text)
            error = answer.json()["error"]
            assert error["type"] == "invalid_request_error"
            assert field in error["message"] or field == error.get("param"), (field, error)
            if what != "messages":
                assert field in error["param"]
        for junk in (b"", b"{", b"[]", b"\xff", b'{"messages": [' + b"[" * 100_000):
            answer = httpx.post(f"{job.url}/v1/chat/completions", content=junk, headers={"x-api-key": job.key})
            assert answer.status_code == 400, answer.text
    assert house.engine.requests == []
    assert job.result.trajectory.segments == []


def test_unknown_answers_to_go_on_from(house, clients):
    with house(["never"]) as house, house.job() as job, pytest.raises(openai.NotFoundError, match="no response"):
        clients(job)[0].responses.create(model="any", input="Hello", previous_response_id="resp_x")


def test_a_full_context_is_said_in_each_apis_words(house, clients):
    long = [{"role": "user", "content": "word " * 400}]
    with house(["never"], max_context=300) as house, house.job() as job:
        one, other = clients(job)
        with pytest.raises(openai.BadRequestError, match="maximum context length") as caught:
            one.chat.completions.create(model="any", messages=long)
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            other.messages.create(model="any", messages=long, max_tokens=9)
    assert (job.metrics["context_overflows"], job.metrics["calls"]) == (2, 0)
    assert job.result.metrics["fault"] == ""


def test_calls_beyond_the_limit_are_not_retried_by_sdks(house, sdk):
    with house(lambda request: "Hello") as house, house.job(instance={"max_calls": 1}) as job:
        client = sdk(openai.OpenAI, base_url=f"{job.url}/v1", api_key=job.key)
        client.chat.completions.create(**CHAT)
        with pytest.raises(openai.PermissionDeniedError, match="may make 1 model calls"):
            client.chat.completions.create(**CHAT)
    assert len(house.engine.requests) == 1
    assert job.metrics["calls_beyond_limit"] == 1


QUIET = {"chat/completions": ": still sampling", "responses": ": still sampling", "messages": "event: ping"}
LAST = {"chat/completions": "data: [DONE]", "responses": "event: response.completed", "messages": "event: message_stop"}
BODIES = {"chat/completions": CHAT, "responses": RESPONSES, "messages": MESSAGES}
HASTY = {"server": {"sse_keep_alive_s": 0.05}}


def lines(house, job, what):
    """The lines of a stream whose reply comes only after some have been heard."""
    heard: list[str] = []
    house.engine.hold()
    body, headers = {**BODIES[what], "stream": True}, {"x-api-key": job.key}
    with httpx.stream("POST", f"{job.url}/v1/{what}", json=body, headers=headers, timeout=60) as response:
        assert (response.status_code, response.headers["content-type"]) == (200, "text/event-stream")
        for line in response.iter_lines():
            heard.append(line)
            if len(heard) == 9:
                house.engine.let_go()
    return heard


@pytest.mark.parametrize("what", BODIES)
def test_streams_are_kept_alive_while_the_reply_is_sampled(house, what):
    with house(["Slowly, but surely."], settings=HASTY) as house, house.job() as job:
        heard = lines(house, job, what)
    assert heard.count(QUIET[what]) >= 3
    assert LAST[what] in heard
    assert "Slowly" in "".join(heard)


@pytest.mark.parametrize("what", BODIES)
def test_a_stream_that_fails_late_says_so_in_its_apis_form(house, clients, what):
    impossible = ScriptedReply(text="x", logprobs=[0.5] * 9)
    with house(lambda request: impossible, settings=HASTY) as house, house.job() as job:
        heard = lines(house, job, what)
        (error,) = [json.loads(line[6:]) for line in heard if line.startswith("data: ") and "error" in line]
        house.engine.hold()
        one, other = clients(job)
        timer = threading.Timer(1.0, house.engine.let_go)
        timer.start()
        if what == "messages":
            assert error["type"] == "error"
            with pytest.raises(anthropic.APIStatusError, match="logprob"), other.messages.stream(**MESSAGES) as stream:
                stream.get_final_message()
        elif what == "responses":
            assert error["type"] == "error"
        else:
            stream = one.chat.completions.create(**CHAT, stream=True)
            with stream, pytest.raises(openai.APIError, match="logprob"):
                list(stream)
        timer.join()
    assert "logprob" in job.result.metrics["fault"]


def test_a_failing_engine_is_a_503_that_sdks_try_again(house, clients):
    with house(lambda request: ScriptedReply(text="x", logprobs=[0.5] * 9)) as house, house.job() as job:
        one, other = clients(job)
        with pytest.raises(openai.InternalServerError) as caught:
            one.with_options(max_retries=1).responses.create(**RESPONSES)
        assert caught.value.status_code == 503
        with pytest.raises(anthropic.InternalServerError):
            other.messages.create(**MESSAGES)
    assert len(house.engine.requests) == 3
