"""Scoring of tokens that are there already: vLLM by its recorded answers, SGLang by the shapes of its public source."""

from __future__ import annotations

import math

import httpx
import msgspec
import pytest

from prorl.api import ModelFault
from prorl.api.llm import EngineInfo
from prorl.llm.dialects.llamacpp import LlamaCpp
from prorl.llm.dialects.scoring import scores_of
from prorl.llm.dialects.sglang_score import SglangScores
from prorl.llm.dialects.vllm_score import VllmScores
from prorl.testing.httpd import HttpServer, json_response

IDS = [5, 7, 9]
CHANCES = [{}, {7: 0.5, 8: 0.25, 9: 0.25}, {7: 0.1, 8: 0.1, 9: 0.8}]  # of the tokens after those before them


class Peer(HttpServer):
    """Answers ``answers[path]``; ``asked`` is the last body."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[str, object] = {}
        self.asked: dict[str, object] = {}

    async def handle(self, request):
        self.asked = msgspec.json.decode(request.body) if request.body else {}
        answer = self.answers.get(request.path)
        if isinstance(answer, int):
            return json_response({"error": {"message": "no"}}, answer)
        return json_response({"detail": "Not Found"}, 404) if answer is None else json_response(answer)


@pytest.fixture
def peer():
    with Peer() as peer:
        yield peer


@pytest.fixture
async def client():
    async with httpx.AsyncClient() as client:
        yield client


@pytest.fixture
def vllm(peer, client):
    places = [{str(token): {"logprob": math.log(p), "rank": 1} for token, p in place.items()} for place in CHANCES]
    choice = {"index": 0, "text": "x", "prompt_logprobs": [None, *places[1:]]}
    peer.answers["/v1/completions"] = {"choices": [choice]}
    return VllmScores(client, peer.url, "m")


@pytest.fixture
def sglang(peer, client):
    entries = [[None, 5, None], [math.log(0.5), 7, None], [math.log(0.8), 9, None]]
    peer.answers["/generate"] = {"output_ids": [1], "meta_info": {"input_token_logprobs": entries}}
    return SglangScores(client, peer.url, "m")


def scaled(place: int, token: int, temperature: float) -> float:
    powers = {each: p ** (1 / temperature) for each, p in CHANCES[place].items()}
    return math.log(powers[token] / sum(powers.values()))


async def test_vllm(vllm, peer):
    assert await vllm.score(IDS) == pytest.approx([None, math.log(0.5), math.log(0.8)])
    assert (peer.asked["model"], peer.asked["prompt"], peer.asked["prompt_logprobs"]) == ("m", IDS, 0)
    for temperature in (0.5, 2.0):
        expected = [None, scaled(1, 7, temperature), scaled(2, 9, temperature)]
        assert await vllm.score(IDS, temperature=temperature) == pytest.approx(expected)
        assert peer.asked["prompt_logprobs"] == -1
    await vllm.score(IDS, temperature=0.0)
    assert peer.asked["prompt_logprobs"] == 0


async def test_sglang(sglang, peer):
    assert await sglang.score(IDS) == pytest.approx([None, math.log(0.5), math.log(0.8)])
    assert (peer.asked["input_ids"], peer.asked["logprob_start_len"]) == (IDS, 0)
    with pytest.raises(ModelFault) as caught:
        await sglang.score(IDS, temperature=0.5)
    assert caught.value.code == "unsupported"


async def test_a_vllm_that_gives_no_whole_distributions(vllm, peer):
    peer.answers["/v1/completions"] = 400
    for temperature, code in ((0.5, "unsupported"), (1.0, "rejected")):
        with pytest.raises(ModelFault) as caught:
            await vllm.score(IDS, temperature=temperature)
        assert caught.value.code == code


@pytest.mark.parametrize(
    "places",
    [
        None,
        [None, {"7": {"logprob": -1.0}}],
        [None, {"8": {"logprob": -1.0}}, {"9": {"logprob": -1.0}}],
        [None, None, {"9": {"logprob": -1.0}}],
    ],
    ids=["none", "too few", "another token", "a hole"],
)
async def test_a_vllm_that_scores_something_else(vllm, peer, places):
    peer.answers["/v1/completions"] = {"choices": [{"prompt_logprobs": places}]}
    with pytest.raises(ModelFault) as caught:
        await vllm.score(IDS)
    assert caught.value.code == "bad_response"


@pytest.mark.parametrize("entries", [[], [[None, 5], [-1.0, 8], [-1.0, 9]], [[None, 5], [None, 7], [-1.0, 9]]])
async def test_an_sglang_that_scores_something_else(sglang, peer, entries):
    peer.answers["/generate"] = {"output_ids": [1], "meta_info": {"input_token_logprobs": entries}}
    with pytest.raises(ModelFault) as caught:
        await sglang.score(IDS)
    assert caught.value.code == "bad_response"


async def test_the_names_of_weights(vllm, sglang, peer):
    assert (await vllm.weights(), await sglang.weights()) == (None, None)
    peer.answers["/weight_info"] = {"weight_version": "step-3"}
    peer.answers["/model_info"] = {"model_path": "m", "is_generation": True, "weight_version": "step-3"}
    assert (await vllm.weights(), await sglang.weights()) == ("step-3", "step-3")
    peer.answers["/weight_info"] = {"weight_version": "default"}
    peer.answers["/get_model_info"] = {"model_path": "m", "is_generation": True, "weight_version": "default"}
    assert (await vllm.weights(), await sglang.weights()) == (None, None)


async def test_who_can_score(client):
    dialect = LlamaCpp(client, "http://e", model=None)

    def found(name):
        return scores_of(dialect, EngineInfo(dialect=name, model="m", max_context=8), client, "http://e")

    assert isinstance(found("vllm"), VllmScores)
    assert isinstance(found("sglang"), SglangScores)
    assert found("llamacpp") is None
