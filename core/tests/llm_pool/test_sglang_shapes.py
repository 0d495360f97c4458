"""SGLang's answers and the requests that are sent for them.

The shapes are written down from SGLang's public source (``srt/entrypoints/http_server.py``, ``managers/io_struct.py``,
``tokenizer_manager.py``, ``schedule_batch.py``), of versions with and without spans of weight versions. No SGLang has
answered here: it does not install on the CPUs that these tests run on.
"""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from prorl.api import ConfigError, GenerationRequest, ModelFault
from prorl.llm.dialects.sglang import Sglang
from prorl.testing.httpd import HttpServer, Response, json_response
from prorl.wire import SamplingParams, VersionSpan

MODELS = {"object": "list", "data": [{"id": "tiny", "owned_by": "sglang", "root": "tiny", "max_model_len": 512}]}
MODEL_INFO = {
    "model_path": "/models/tiny",
    "tokenizer_path": "/models/tiny",
    "is_generation": True,
    "preferred_sampling_params": None,
    "weight_version": "default",
}
SERVER_INFO = {
    "model_path": "/models/tiny",
    "api_key": None,
    "random_seed": 907116713,
    "max_total_num_tokens": 20480,
    "max_req_input_len": 506,
    "internal_states": [{"last_gen_throughput": 0.0}],
    "version": "0.5.9",
}
OLD = {
    "text": "Paris<|im_end|>",
    "output_ids": [187, 307],
    "meta_info": {
        "id": "abc",
        "finish_reason": {"type": "stop", "matched": 307},
        "prompt_tokens": 3,
        "weight_version": "step-7",
        "total_retractions": 0,
        "input_token_logprobs": [],
        "output_token_logprobs": [[-5.117606163024902, 187, None], [-0.25, 307, None]],
        "completion_tokens": 2,
        "cached_tokens": 2,
        "e2e_latency": 0.05,
    },
}
NEW = {
    **OLD,
    "prompt_token_ids": [72, 73, 74],
    "meta_info": {
        **OLD["meta_info"],
        "weight_version": "step-8",
        "weight_versions": [
            {"version": "default", "start": 0, "end": 1},
            {"version": "step-8", "start": 1, "end": 2},
        ],
    },
}


def changed(answer: dict[str, Any], **meta: Any) -> dict[str, Any]:
    return {**answer, "meta_info": {**answer["meta_info"], **meta}}


class Recorded(HttpServer):
    def __init__(self, answers: dict[str, Response]) -> None:
        super().__init__()
        known = {"/v1/models": MODELS, "/get_model_info": MODEL_INFO, "/get_server_info": SERVER_INFO}
        self.answers = {**{path: json_response(answer) for path, answer in known.items()}, **answers}
        self.asked: list[tuple[str, Any]] = []

    async def handle(self, request):
        self.asked.append((request.path, msgspec.json.decode(request.body) if request.body else None))
        return self.answers.get(request.path, json_response({"detail": "Not Found"}, 404))


@pytest.fixture
async def ask():
    async def generate(answer: Any, **sampling: Any):
        with Recorded({"/generate": answer if isinstance(answer, Response) else json_response(answer)}) as server:
            async with httpx.AsyncClient() as client:
                generation = await Sglang(client, server.url, model=None).generate(
                    GenerationRequest(
                        prompt_ids=[72, 73, 74],
                        sampling=SamplingParams(**sampling),
                        request_id="abc",
                        session_id="job",
                        cache_salt="step/7",
                        priority=3,
                    )
                )
                return generation, server.asked

    return generate


async def test_a_recent_version(ask):
    generation, ((path, body),) = await ask(NEW, max_tokens=9, seed=5, top_k=0, stop_token_ids=(11,))
    assert path == "/generate"
    assert (generation.token_ids, generation.logprobs) == ([187, 307], [-5.117606163024902, -0.25])
    assert (generation.finish, generation.stop_token) == ("stop", 307)
    assert generation.prompt_echo == [72, 73, 74]
    assert generation.weight_spans == [VersionSpan("", 1), VersionSpan("step-8", 1)]
    assert generation.cached_tokens == 2
    assert body == {
        "rid": "abc",
        "input_ids": [72, 73, 74],
        "return_logprob": True,
        "logprob_start_len": -1,
        "return_prompt_token_ids": True,
        "stream": False,
        "extra_key": "step/7",
        "priority": 3,
        "sampling_params": {
            "max_new_tokens": 9,
            "min_new_tokens": 0,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop_token_ids": [11],
            "ignore_eos": False,
            "skip_special_tokens": False,
            "no_stop_trim": True,
            "n": 1,
            "sampling_seed": 5,
        },
    }


async def test_an_older_version_names_one_version_and_counts_the_prompt(ask):
    generation, _ = await ask(OLD)
    assert generation.prompt_echo is None
    assert generation.weight_spans == [VersionSpan("step-7", 2)]
    with pytest.raises(ModelFault, match="read 4 tokens of a prompt of 3") as caught:
        await ask(changed(OLD, prompt_tokens=4))
    assert caught.value.code == "prompt_mismatch"


@pytest.mark.parametrize(
    ("reason", "finish", "stop_token"),
    [
        ({"type": "stop", "matched": 307}, "stop", 307),
        ({"type": "stop", "matched": "<|im_end|>"}, "stop", None),
        ({"type": "length", "length": 2}, "length", None),
        ({"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}, "abort", None),
    ],
)
async def test_how_a_reply_ends(ask, reason, finish, stop_token):
    generation, _ = await ask(changed(NEW, finish_reason=reason))
    assert (generation.finish, generation.stop_token) == (finish, stop_token)


@pytest.mark.parametrize("reason", [None, {"type": "boredom"}])
async def test_an_end_that_is_not_known(ask, reason):
    with pytest.raises(ModelFault, match="unknown reason") as caught:
        await ask(changed(NEW, finish_reason=reason))
    assert caught.value.code == "bad_response"


async def test_logprobs_in_pairs_are_those_of_versions_without_text(ask):
    generation, _ = await ask(changed(OLD, output_token_logprobs=[[-1.5, 187], [-0.25, 307]]))
    assert generation.logprobs == [-1.5, -0.25]


@pytest.mark.parametrize(
    ("sampling", "kind"),
    [
        ({}, "processed"),
        ({"temperature": 0.7}, "processed"),
        ({"temperature": 0.7, "top_p": 0.9}, "temperature"),
        ({"top_k": 5}, "temperature"),
        ({"temperature": 0.0}, "raw"),
    ],
)
async def test_the_kind_of_logprob(ask, sampling, kind):
    generation, _ = await ask(NEW, **sampling)
    assert generation.logprob_kind == kind


async def test_it_describes_itself():
    with Recorded({}) as server:
        async with httpx.AsyncClient() as client:
            info = await Sglang(client, server.url, model=None).describe()
            assert (info.model, info.max_context, info.version) == ("tiny", 512, "0.5.9")
            assert info.incarnation == "907116713"  # drawn at its start
            assert info.chat_template is None
            with pytest.raises(ConfigError, match="it serves: tiny"):
                await Sglang(client, server.url, model="huge").describe()
            server.answers["/get_server_info"] = json_response({**SERVER_INFO, "max_total_num_tokens": 400})
            assert (await Sglang(client, server.url, model=None).describe()).max_context == 400
            del server.answers["/get_server_info"], server.answers["/get_model_info"]
            server.answers["/model_info"] = json_response({**MODEL_INFO, "is_generation": False})
            with pytest.raises(ConfigError, match="does not generate text"):
                await Sglang(client, server.url, model=None).describe()


async def test_an_abort_never_aborts_the_others():
    """SGLang aborts all requests whose id begins with what it is given, so an empty one would be everything."""
    with Recorded({"/abort_request": Response()}) as server:
        async with httpx.AsyncClient() as client:
            dialect = Sglang(client, server.url, model=None)
            await dialect.abort("")
            await dialect.abort("abc")
        assert server.asked == [("/abort_request", {"rid": "abc"})]
