"""What a program in a sandbox may send to its door: none of it may grow the server, stall it, or end another job's."""

from __future__ import annotations

import json

import httpx
import pytest

from prorl.server.proxy import ROUTE
from prorl.testing.scripted import ScriptedEngine
from prorl.testing.scripted.chat import ChatSpeech
from prorl.wire.soundness import check_result

WORD = "word "


def ask(job, what="chat/completions", **body):
    body = {"model": "any", "messages": [{"role": "user", "content": "Hello"}], **body}
    return httpx.post(f"{job.url}/v1/{what}", json=body, headers={"x-api-key": job.key}, timeout=60)


def test_prompts_that_do_not_fit_are_not_kept(house):
    """They cost a call nothing, so an agent may send any number of them."""
    with house(["Hello"], max_context=300) as house, house.job() as job:
        for number in range(5):
            answer = ask(job, messages=[{"role": "user", "content": f"{number} " + WORD * 400}])
            assert answer.json()["error"]["code"] == "context_length_exceeded"
        assert ask(job).status_code == 200
        assert len(job.door._trace._prompts) == 1
        assert len(job.door._streams._leading) == 1
    assert len(job.result.trajectory.segments) == 1
    assert job.metrics["context_overflows"] == 5


def test_nor_where_only_the_engine_knows_how_long_they_are(house):
    speech = ChatSpeech()
    with ScriptedEngine(lambda _: "Hello", speech=speech, max_context=300) as engine, house(["never"]) as house:
        house.lab.client.clear_llm_server()
        house.lab.client.add_llm_server(engine.url)
        with house.job() as job:
            for number in range(5):
                answer = ask(job, messages=[{"role": "user", "content": f"{number} " + WORD * 400}])
                assert answer.json()["error"]["code"] == "context_length_exceeded"
            assert ask(job).status_code == 200
            assert len(job.door._trace._prompts) == 1


def test_branches_that_come_to_nothing_are_one(house):
    hello, more = {"role": "user", "content": "Hello"}, {"role": "user", "content": "More"}
    long = {"role": "user", "content": WORD * 400}
    with house(lambda request: "Yes", max_context=300) as house, house.job() as job:
        said = ask(job, messages=[hello]).json()["choices"][0]["message"]
        assert ask(job, messages=[hello, said, more]).status_code == 200
        for _ in range(5):
            assert ask(job, messages=[hello, said, long]).status_code == 400
        assert len(job.door._chat("").trajectory().segments) == 2
        assert ask(job, messages=[hello, said, {"role": "user", "content": "Else"}]).status_code == 200
    assert [segment.origin for segment in job.result.trajectory.segments] == ["open", "branch"]
    assert check_result(job.result) == []


def test_an_answer_is_gone_on_from_without_a_copy_of_the_conversation(house):
    with house(lambda request: "Yes") as house, house.job() as job:
        items, said = [], []
        for number in range(4):
            items.append({"role": "user", "content": f"{number} " + WORD * 20})
            answer = ask(job, "responses", input=items, instructions="Be brief.").json()
            items += answer["output"]
            said.append(answer["id"])
        follows = ask(job, "responses", input="More", previous_response_id=said[-1], instructions="Be brief.")
        assert follows.status_code == 200
    assert job.metrics["conversations"] == 1
    assert job.metrics["branches"] == 0
    assert len(job.result.trajectory.segments) == 1


def test_fields_without_effect_are_counted_up_to_a_number(house):
    with house(["Hello"]) as house, house.job() as job:
        assert ask(job, **{f"field-{number}": 1 for number in range(1000)}).status_code == 200
    assert 0 < len(job.metrics["ignored"]) < 100


def test_refusals_are_short(house):
    with house(["never"]) as house, house.job() as job:
        long = "x" * 100_000
        refused = [
            ask(job, "responses", input="Hello", previous_response_id=long),
            ask(job, messages=[{"role": "user", "content": [{"type": long}]}]),
            ask(job, messages=[{"role": long, "content": "Hello"}]),
        ]
    assert [answer.status_code for answer in refused] == [404, 400, 400]
    assert max(len(answer.content) for answer in refused) < 5_000
    assert max(map(len, job.result.metrics["refusals"])) < 5_000


def test_any_path_is_taken_apart_in_one_pass():
    """Also one with a line break in it, which a dot does not match by itself."""
    assert ROUTE.fullmatch("/proxy/a/v1/chat\ncompletions") is not None
    assert ROUTE.fullmatch("/proxy/a" + "/v1" * 20_000 + "/\n") is not None


@pytest.mark.parametrize("depth", [300, 600, 900, 960, 1500])
def test_what_is_nested_deeply_is_the_clients_mistake(house, depth):
    nested = json.loads('{"a":' * depth + "1" + "}" * depth) if depth < 950 else None
    text = '{"a":' * depth + "1" + "}" * depth
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": text}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "done"}
    hello = {"role": "user", "content": "Hello"}
    with house(lambda request: "Hello") as house, house.job() as job:
        answers = [ask(job, messages=[hello, said, result])]
        if nested is not None:
            tool = {"type": "function", "function": {"name": "f", "parameters": nested}}
            answers.append(ask(job, tools=[tool]))
        assert {answer.status_code for answer in answers} <= {200, 400}
    assert job.result.metrics["fault"] == ""


def test_an_odd_description_of_a_tool_is_no_fault_of_the_model(house):
    """A fault masks the sample: a policy whose code runs in the sandbox could have the bad ones masked."""
    for word in ("Q" + "0" * 24 + "A", "Z" + "0" * 24 + "Q"):
        tool = {"type": "function", "function": {"name": "f", "description": word}}
        with house(["Hello"]) as house_, house_.job() as job:
            assert ask(job, tools=[tool]).status_code == 200
        assert job.result.metrics["fault"] == ""
