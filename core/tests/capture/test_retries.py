"""The same call again: a retry gets the reply that is there, anything else is a second sample, on a branch."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from prorl.testing.scripted import ScriptedReply

ASKED = {"model": "any", "messages": [{"role": "user", "content": "Say something."}]}


def numbered():
    """A policy that never says the same twice."""
    numbers = count(1)
    return lambda request: f"Reply {next(numbers)}."


def waiting(job):
    """How many clients wait for a reply."""
    return sum(sample.waiting for prompt in job.door._trace._prompts.values() for sample in prompt.samples)


@pytest.fixture
def ask():
    def post(job, body=ASKED, **headers):
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        response = httpx.post(
            f"{job.url}/v1/chat/completions", json=body, headers={"x-api-key": job.key, **headers}, timeout=60
        )
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]["message"]["content"]

    return post


@pytest.fixture
def hang_up():
    """Send a call over a bare socket; what it returns is the way to leave before the answer."""

    def begin(job, body=ASKED, **headers):
        address = urlsplit(job.url)
        content = json.dumps(body).encode()
        lines = [f"POST {address.path}/v1/chat/completions HTTP/1.1", "host: x", f"x-api-key: {job.key}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        lines += ["content-type: application/json", f"content-length: {len(content)}", "", ""]
        connection = socket.create_connection((address.hostname, address.port))
        connection.sendall("\r\n".join(lines).encode() + content)
        return connection.close

    return begin


def test_after_delivery_the_same_call_is_a_second_sample(house, exact, ask):
    with house(numbered()) as house, house.job() as job:
        assert [ask(job) for _ in range(3)] == ["Reply 1.", "Reply 2.", "Reply 3."]
    segments = job.result.trajectory.segments
    assert [segment.origin for segment in segments] == ["open", "branch", "branch"]
    prompt = job.result.trajectory.turns[0].end
    assert all(segment.shared == prompt for segment in segments[1:])
    exact(house, job.result)


def test_what_says_that_it_is_a_retry_gets_the_same_reply(house, exact, ask):
    with house(numbered()) as house, house.job() as job:
        assert ask(job, x_stainless_retry_count="0") == "Reply 1."
        assert ask(job, x_stainless_retry_count="1") == "Reply 1."
        assert ask(job, x_stainless_retry_count="0", idempotency_key="mine") == "Reply 2."
        assert ask(job, x_stainless_retry_count="0", idempotency_key="mine") == "Reply 2."
        assert ask(job, x_stainless_retry_count="0", idempotency_key="other") == "Reply 3."
    assert job.metrics["retries"] == 2
    assert len(job.result.trajectory.segments) == 3
    exact(house, job.result)


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_that_nobody_got_is_kept_for_the_retry(house, exact, ask, hang_up, wait_until, stream):
    with house(numbered()) as house, house.job() as job:
        house.engine.hold()
        leave = hang_up(job, {**ASKED, "stream": stream})
        wait_until(lambda: house.engine.in_flight == 1)
        leave()
        wait_until(lambda: waiting(job) == 0)
        house.engine.let_go()
        assert ask(job, x_stainless_retry_count="0") == "Reply 1."  # a harness's own retry: a new call of its SDK
    assert job.metrics["calls"] == 1
    assert house.engine.aborted == 0
    exact(house, job.result)


def test_a_call_under_way_is_joined_unless_it_says_that_it_is_a_first_try(house, exact, ask, wait_until):
    with house(numbered()) as house, house.job() as job, ThreadPoolExecutor() as pool:
        house.engine.hold()
        first = pool.submit(ask, job)
        wait_until(lambda: house.engine.in_flight == 1)
        joined = pool.submit(ask, job)
        wait_until(lambda: job.door.metrics()["retries"] == 1)
        samples = [pool.submit(ask, job, x_stainless_retry_count="0") for _ in range(2)]
        named = pool.submit(ask, job, x_prorl_sample="b")
        wait_until(lambda: house.engine.in_flight == 4)
        house.engine.let_go()
        assert first.result() == joined.result() == "Reply 1."
        assert {sample.result() for sample in (*samples, named)} == {"Reply 2.", "Reply 3.", "Reply 4."}
    assert len(job.result.trajectory.segments) == 4
    exact(house, job.result)


def test_parallel_calls_of_one_conversation_branch_and_run_side_by_side(house, exact, ask, wait_until):
    """Two ways to go on from one reply: at once, on branches that share its tokens as context."""
    with house(numbered()) as house, house.job() as job, ThreadPoolExecutor() as pool:
        said = {"role": "assistant", "content": ask(job)}
        house.engine.hold()
        ways = [[*ASKED["messages"], said, {"role": "user", "content": f"Way {n}?"}] for n in range(4)]
        asked = [pool.submit(ask, job, {"model": "any", "messages": way}) for way in ways]
        wait_until(lambda: house.engine.in_flight == 4)
        house.engine.let_go()
        replies = [future.result() for future in asked]
        for way, reply in zip(ways, replies, strict=True):
            more = [*way, {"role": "assistant", "content": reply}, {"role": "user", "content": "Go on."}]
            ask(job, {"model": "any", "messages": more})
    segments = job.result.trajectory.segments
    assert sorted(segment.origin for segment in segments) == ["branch", "branch", "branch", "open"]
    assert len({segment.shared for segment in segments if segment.parent is not None}) == 1
    assert sum(sum(segment.loss_mask) for segment in segments) == sum(
        turn.end - turn.start for turn in job.result.trajectory.turns if turn.role == "assistant"
    )
    exact(house, job.result)


def test_sub_agents_and_other_tools_are_segments_of_their_own(house, exact, ask):
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    other = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "required": ["x"]}}}
    with house(numbered()) as house, house.job() as job:
        ask(job)
        ask(job, {"model": "any", "messages": [{"role": "user", "content": "Another task."}]}, x_prorl_agent="scout")
        reply = ask(job, {**ASKED, "tools": [tool]})
        more = [*ASKED["messages"], {"role": "assistant", "content": reply}, {"role": "user", "content": "And?"}]
        ask(job, {"model": "any", "messages": more, "tools": [tool]})
        ask(job, {"model": "any", "messages": more, "tools": [other]})
        ask(job, {"model": "any", "messages": [{"role": "system", "content": "Anew."}, *more], "tools": [tool]})
    segments = job.result.trajectory.segments
    assert [(segment.origin, segment.agent) for segment in segments] == [
        ("open", ""),
        ("open", "scout"),
        ("open", ""),
        ("open", ""),
        ("open", ""),
    ]
    exact(house, job.result)


def test_an_edited_history_is_rendered_and_not_trained_on(house, exact, ask):
    with house(numbered()) as house, house.job() as job:
        ask(job)
        edited = [*ASKED["messages"], {"role": "assistant", "content": "I said nothing."}]
        ask(job, {"model": "any", "messages": [*edited, {"role": "user", "content": "What did you say?"}]})
    _, second = job.result.trajectory.segments
    assert second.origin == "open"
    turns = [turn for turn in job.result.trajectory.turns if turn.segment == 1]
    assert [turn.role for turn in turns] == ["prompt", "assistant"]
    assert "I said nothing." in turns[0].text
    exact(house, job.result)


def test_the_sdks_own_retries_leave_one_segment(house, sdk):
    """The engine breaks three times over: the proxy says 503, the SDK tries again, and the trace does not fork."""
    calls = count()

    def policy(request):
        if next(calls) in (0, 1):
            return ScriptedReply(text="cut off", end=False, logprobs=[0.5] * 99)  # refused by the checks of a turn
        return "At last."

    with house(policy) as house, house.job() as job:
        client = sdk(openai.OpenAI, base_url=f"{job.url}/v1", api_key=job.key, max_retries=4)
        said = client.chat.completions.create(**ASKED)
        assert said.choices[0].message.content == "At last."
    assert (job.result.metrics["fault"], job.metrics["calls"]) == ("", 1)
    trajectory = job.result.trajectory
    assert [turn.role for turn in trajectory.turns] == ["prompt", "assistant"]
    assert len(trajectory.segments) == 1
    assert len(house.engine.requests) == 3


def test_the_end_of_the_job_ends_what_is_under_way(house, hang_up, wait_until):
    with house(numbered()) as house:
        with house.job() as job:
            house.engine.hold()
            leave = hang_up(job)
            wait_until(lambda: house.engine.in_flight == 1)
        assert job.result.error is None
        wait_until(lambda: house.engine.aborted == 1)
        leave()
        gone = httpx.post(f"{job.url}/v1/messages", json=ASKED, headers={"x-api-key": job.key})
        assert gone.status_code == 404
        assert gone.json()["error"]["type"] == "not_found_error"
        house.engine.let_go()
