"""vLLM's answers as recorded, old and new, and the requests that are sent for them."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from prorl.api import ConfigError, GenerationRequest, ModelFault
from prorl.llm.dialects.vllm import Vllm, VllmFactory
from prorl.testing.httpd import HttpServer, Response, json_response
from prorl.wire import BackendSpec, SamplingParams, VersionSpan

# recorded from vLLM 0.32.0; lists shortened
GENERATED = b"""{"request_id":"generate-tokens-abc","model":"tiny","created":1795992411,"usage":{"prompt_tokens":3,
"total_tokens":5,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":2,"created_cache_tokens":null,
"multimodal_tokens":null},"completion_tokens_details":null},"prompt_logprobs":null,"prompt_token_id_logprobs":null,
"prompt_token_ids":[72,73,74],"mm_placeholders":null,"metrics":null,"kv_transfer_params":null,"ec_transfer_params":null,
"output_mode":"tokens","choices":[{"index":0,"finish_reason":"stop","stop_reason":null,"token_ids":[187,307],
"routed_experts":null,"sampling_mask":null,"weight_versions":[{"version":"default","start":0,"end":1},
{"version":"v2","start":1,"end":2}],"logprobs":{"content":[{"token_id":187,"logprob":-5.117606163024902,"rank":2,
"top_logprobs":[{"token_id":187,"logprob":-5.117606163024902,"rank":2}]},{"token_id":307,"logprob":-5.6581950187683105,
"rank":91,"top_logprobs":[{"token_id":307,"logprob":-5.6581950187683105,"rank":91}]}]}}]}"""
# the same endpoint some versions earlier: no echo, no versions, the id inside the token's text
GENERATED_OLD = b"""{"request_id":"abc","choices":[{"index":0,"logprobs":{"content":[{"token":"token_id:187",
"logprob":-5.117606163024902,"bytes":null,"top_logprobs":[]},{"token":"token_id:11","logprob":-5.8174967765808105,
"bytes":null,"top_logprobs":[]}]},"finish_reason":"stop","stop_reason":11,"token_ids":[187,11]}],"prompt_logprobs":null,
"kv_transfer_params":null}"""
COMPLETED = b"""{"id":"cmpl-abc","object":"text_completion","created":1795992426,"model":"tiny","choices":[{"index":0,
"text":"\\u001d","logprobs":{"text_offset":[0,12],"token_logprobs":[-5.117606163024902,-5.6581950187683105],"tokens":
["token_id:187","token_id:217"],"top_logprobs":[{"token_id:187":-5.117606163024902},{"token_id:217":-5.6581950187683105}
]},"finish_reason":"length","stop_reason":null,"token_ids":[187,217],"prompt_logprobs":null,"prompt_token_ids":
[72,73,74],"routed_experts":null}],"service_tier":null,"system_fingerprint":"vllm-0.32.0-46d5542f","usage":
{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":0},
"completion_tokens_details":null},"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}"""
DISABLED = {"error": {"message": "Scale-out endpoints are disabled.", "type": "PermissionDeniedError", "code": 403}}
MODELS = {"object": "list", "data": [{"id": "tiny", "owned_by": "vllm", "max_model_len": 512, "parent": None}]}


class Recorded(HttpServer):
    """Answers each path with what was recorded for it, and keeps what it was asked."""

    def __init__(self, answers: dict[str, Response]) -> None:
        super().__init__()
        self.answers = {"/v1/models": json_response(MODELS), **answers}
        self.asked: list[tuple[str, Any]] = []
        self.sessions: list[str | None] = []

    async def handle(self, request):
        self.sessions.append(request.headers.get("x-session-id"))
        self.asked.append((request.path, msgspec.json.decode(request.body) if request.body else None))
        return self.answers.get(request.path, json_response({"detail": "Not Found"}, 404))


@pytest.fixture
async def ask():
    """``await ask(answers)``: the generation, and the requests that were made for it."""

    async def generate(answers: dict[str, Response], times: int = 1, **sampling: Any):
        with Recorded(answers) as server:
            async with httpx.AsyncClient() as client:
                dialect = Vllm(client, server.url, model=None)
                await dialect.describe()
                server.asked.clear()
                for _ in range(times):
                    generation = await dialect.generate(
                        GenerationRequest(
                            prompt_ids=[72, 73, 74],
                            sampling=SamplingParams(**sampling),
                            request_id="abc",
                            session_id="job",
                            cache_salt="step/7 of @run",
                            priority=3,
                        )
                    )
                return generation, server.asked

    return generate


async def test_generate(ask):
    generation, asked = await ask({"/inference/v1/generate": Response(body=GENERATED)}, max_tokens=9, seed=5)
    assert generation.token_ids == [187, 307]
    assert generation.logprobs == [-5.117606163024902, -5.6581950187683105]
    assert (generation.finish, generation.stop_token) == ("stop", 307)
    assert generation.prompt_echo == [72, 73, 74]
    assert generation.weight_spans == [VersionSpan("", 1), VersionSpan("v2", 1)]
    assert generation.cached_tokens == 2
    ((_, body),) = asked
    sampling = body.pop("sampling_params")
    salt = body.pop("cache_salt")
    assert len(salt) == 32
    assert salt.isalnum()  # vLLM refuses "/" and "@" in it
    assert body == {
        "model": "tiny",
        "request_id": "abc",
        "return_token_ids": True,
        "token_ids": [72, 73, 74],
        "priority": -3,
    }
    assert sampling == {
        "n": 1,
        "max_tokens": 9,
        "min_tokens": 0,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": [],
        "ignore_eos": False,
        "skip_special_tokens": False,
        "seed": 5,
        "detokenize": False,
        "logprobs": 0,
    }


@pytest.mark.parametrize("path", ["/inference/v1/generate", "/v1/completions"])
async def test_a_router_is_told_whose_turn_it_is(path):
    answers = {"/inference/v1/generate": Response(body=GENERATED), "/v1/completions": Response(body=COMPLETED)}
    with Recorded({path: answers[path]}) as server:
        async with httpx.AsyncClient() as client:
            dialect = Vllm(client, server.url, model="tiny")
            await dialect.generate(
                GenerationRequest(prompt_ids=[72], sampling=SamplingParams(), request_id="r", session_id="job-7")
            )
    assert (server.asked[-1][0], server.sessions[-1]) == (path, "job-7")


async def test_generate_of_older_versions(ask):
    generation, _ = await ask({"/inference/v1/generate": Response(body=GENERATED_OLD)})
    assert generation.token_ids == [187, 11]
    assert generation.logprobs == [-5.117606163024902, -5.8174967765808105]
    assert (generation.finish, generation.stop_token) == ("stop", 11)
    assert (generation.prompt_echo, generation.weight_spans) == (None, None)


@pytest.mark.parametrize("answer", [json_response(DISABLED, 403), json_response({"detail": "Not Found"}, 404)])
async def test_completions_where_generate_is_not_enabled(ask, answer):
    answers = {"/inference/v1/generate": answer, "/v1/completions": Response(body=COMPLETED)}
    generation, asked = await ask(answers, times=2)
    assert generation.token_ids == [187, 217]
    assert generation.logprobs == [-5.117606163024902, -5.6581950187683105]
    assert (generation.finish, generation.stop_token) == ("length", None)
    assert generation.prompt_echo == [72, 73, 74]
    assert [path for path, _ in asked] == ["/inference/v1/generate", "/v1/completions", "/v1/completions"]
    body = asked[-1][1]
    assert (body["prompt"], body["logprobs"], body["return_token_ids"]) == ([72, 73, 74], 0, True)
    assert body["return_tokens_as_token_ids"]
    assert body["skip_special_tokens"] is False


async def test_a_missing_model_is_said_and_the_endpoint_not_given_up(ask):
    missing = json_response({"error": {"message": "The model `tiny` does not exist.", "code": 404}}, 404)
    with pytest.raises(ModelFault, match="does not exist") as caught:
        await ask({"/inference/v1/generate": missing, "/v1/completions": missing})
    assert caught.value.code == "rejected"


async def test_completions_without_token_ids_are_refused(ask):
    body = COMPLETED.replace(b'"token_ids":[187,217],', b"")
    with pytest.raises(ModelFault, match=r"0\.10\.2 or newer"):
        await ask({"/v1/completions": Response(body=body)})


@pytest.mark.parametrize(("sampling", "kind"), [({}, "processed"), ({"temperature": 0.7}, "raw")])
async def test_the_kind_of_logprob_where_the_server_does_not_say(ask, sampling, kind):
    generation, _ = await ask({"/inference/v1/generate": Response(body=GENERATED)}, **sampling)
    assert generation.logprob_kind == kind


async def test_the_kind_of_logprob_where_it_does(ask):
    info = json_response({"vllm_config": {"model_config": {"logprobs_mode": "processed_logprobs"}}})
    answers = {"/inference/v1/generate": Response(body=GENERATED), "/server_info": info}
    generation, _ = await ask(answers, temperature=0.7)
    assert generation.logprob_kind == "processed"


async def test_what_is_not_vllm_is_not_taken_for_it():
    others = [
        Response(status=404),
        Response(body=b"<html></html>"),
        json_response({"data": [{"id": "x", "owned_by": "llamacpp"}]}),
        json_response({"data": "none"}),
        json_response([]),
    ]
    for answer in others:
        with Recorded({"/v1/models": answer}) as server:
            async with httpx.AsyncClient() as client:
                assert not await VllmFactory().detect(client, server.url)
    with Recorded({}) as server:
        async with httpx.AsyncClient() as client:
            assert await VllmFactory().detect(client, server.url)
            with pytest.raises(ConfigError, match="it serves: tiny"):
                await Vllm(client, server.url, model="huge").describe()


async def test_a_restart_is_noticed_by_the_first_reply_that_has_forgotten_its_weights(pool, engine, clock):
    one = engine()
    await pool.add(BackendSpec(url=one.url, policy_version="base"))
    lease = pool.lease("job", wait_s=0, hold=clock.hold)
    one.weight_version = "step-2"
    assert (await lease.generate([72], SamplingParams())).generation.weight_spans[0].version == "step-2"
    one.weight_version = "default"  # as somebody may name them
    assert (await lease.generate([72], SamplingParams())).generation.weight_spans[0].version == ""
    one.weight_version = "step-3"
    await lease.generate([72], SamplingParams())
    one.weight_version, one.incarnation = "default", 2
    with pytest.raises(ModelFault, match=r"has restarted|restarted, so its weights"):
        await lease.generate([72], SamplingParams())
    assert not pool.status().backends[0].healthy
