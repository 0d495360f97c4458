"""``prorl verify`` with a real vLLM: what it sampled it confirms, what was forged it does not.

Rollouts by the real server: several turns, a branch and a compaction; the policy's own distribution, a scaled one, the
likeliest tokens, and a cut one.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from prorl.api import AgentHandler, HandlerRecord, Job, Message
from prorl.cli.verify import command
from prorl.client import RolloutClient
from prorl.llm.plugin import prorl_llm_dialects
from prorl.plugins.registry import Registry
from prorl.server.serve import RunningServer
from prorl.server.settings import parse_settings
from prorl.testing.bytebpe import build_tokenizer, write_tokenizer
from prorl.wire import BackendSpec, JobRequest, RolloutResult, SamplingParams, VersionSpan
from prorl.wire.certificate import certify

pytestmark = pytest.mark.timeout(900)
TOKENIZER = build_tokenizer()
SAMPLED = [SamplingParams(seed=n, max_tokens=24) for n in range(8)]
SCALED = [SamplingParams(seed=n, max_tokens=24, temperature=0.7) for n in range(4)]
LIKELIEST = [SamplingParams(max_tokens=24, temperature=0.0)]
CUT = [SamplingParams(seed=3, max_tokens=24, top_p=0.5)]


class Wander(AgentHandler):
    async def init(self, job: Job) -> Any:
        return None, {}, {}

    async def run(self, job: Job) -> dict[str, Any]:
        chat = job.services.chat()
        await chat.open([Message(role="user", content="Grüße, 世界: 12 + 30?")])
        await chat.reply()
        await chat.observe([Message(role="tool", name="look", content="<|im_end|>\n\nnothing")])
        await chat.reply()
        twin = chat.fork(3)
        await twin.reply()
        await chat.restart([Message(role="user", content="In short: nothing. Go on.")], origin="compaction")
        await chat.reply()
        return {}

    async def eval(self, job: Job) -> dict[str, Any]:
        return {"reward": 0.0}


@pytest.fixture(scope="module")
def recorded(vllm) -> list[bytes]:
    wander = HandlerRecord(name="wander", factory=Wander, summary="talks")
    registry = Registry(handlers={"wander": wander}, dialects={record.name: record for record in prorl_llm_dialects()})

    async def run(url: str) -> list[RolloutResult]:
        async with RolloutClient(url) as server:
            await server.add_llm_server(BackendSpec(url=vllm.url, policy_version="step-1"))
            requests = [
                JobRequest(domain="wander", instance={}, sampling_params=sampling)
                for sampling in (*SAMPLED, *SCALED, *LIKELIEST, *CUT)
            ]
            return await asyncio.gather(*map(server.process, requests))

    with RunningServer(parse_settings({"server": {"port": 0}}), registry) as server:
        results = asyncio.run(run(server.url))
    assert [result.error for result in results] == [None] * len(results)
    return [msgspec.json.encode(result) for result in results]


@pytest.fixture
def results(recorded) -> list[RolloutResult]:
    return [msgspec.json.decode(each, type=RolloutResult) for each in recorded]


@pytest.fixture
def verify(tmp_path, vllm):
    def run(results: list[RolloutResult], *options: str) -> tuple[int, dict[str, Any]]:
        path = tmp_path / "results.jsonl"
        path.write_bytes(b"".join(msgspec.json.encode(result) + b"\n" for result in results))
        arguments = [str(path), "--engine", vllm.url, "--version", "step-1", "--json", *options]
        done = CliRunner().invoke(command, arguments, standalone_mode=False)
        assert done.exception is None, done.exception
        return done.return_value, json.loads(done.stdout)

    return run


def test_the_engine_confirms_what_it_sampled(results, verify) -> None:
    status, report = verify(results, "--tolerance", "1e-4")
    assert (status, report["wrong"]) == (0, [])
    engine = report["engine"]
    assert engine["largest_gap"] < 1e-4
    cut = sum(sum(segment.loss_mask) for segment in results[-1].trajectory.segments)
    assert engine["tokens_not_compared"] == {"sampled with top_p": cut}
    assert engine["tokens_compared"] + cut == report["sampled_tokens"]["step-1"]
    print("largest gap", engine["largest_gap"], "mean", engine["mean_gap"], "tokens", engine["tokens_compared"])


def test_texts_are_those_of_the_tokens(results, verify, tmp_path) -> None:
    write_tokenizer(tmp_path / "tokenizer")
    status, report = verify(results, "--tokenizer", str(tmp_path / "tokenizer"))
    assert (status, report["wrong"]) == (0, [])
    texts = report["texts"]
    assert texts["replies_that_would_encode_otherwise"] > texts["replies"] / 2, (
        "random tokens are no encoding of a text"
    )
    print(texts)


def encode_again(result: RolloutResult) -> None:
    """The last reply as a trainer has it that keeps texts: the same text in other tokens."""
    segment, turn = result.trajectory.segments[-1], result.trajectory.turns[-1]
    said = segment.tokens[turn.start :]
    ids = TOKENIZER.encode(TOKENIZER.decode(said, skip_special_tokens=False), add_special_tokens=False).ids
    assert ids != said
    count = len(ids)
    segment.tokens[turn.start :], segment.loss_mask[turn.start :] = ids, [1] * count
    segment.logprobs[turn.start :] = [*segment.logprobs[turn.start :], *[-1.0] * count][:count]
    segment.versions[-1] = VersionSpan(segment.versions[-1].version, count)
    turn.end = len(segment.tokens)


def shift_a_logprob(result: RolloutResult) -> None:
    segment, turn = result.trajectory.segments[0], result.trajectory.turns[1]
    segment.logprobs[turn.start] -= 0.001


def change_the_prompt(result: RolloutResult) -> None:
    result.trajectory.segments[2].tokens[5] += 1


@pytest.mark.parametrize("forge", [encode_again, shift_a_logprob, change_the_prompt], ids=lambda f: f.__name__)
def test_a_forgery_whose_hashes_are_right(results, verify, forge) -> None:
    forge(results[2])
    results[2].trajectory.certificate = certify(results[2].trajectory)
    status, report = verify(results, "--tolerance", "1e-4")
    assert status == 1
    (wrong,) = report["wrong"]
    assert wrong["line"] == 3
    assert {finding["code"] for finding in wrong["findings"]} == {"other_logprob"}
