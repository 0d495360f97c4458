"""What needs no cluster: rows, options, what a job becomes, the gateway's replies piece by piece."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from prorl.api import GenerationRequest
from prorl.llm.dialects.vllm import Vllm
from prorl.wire import SamplingParams
from prorl.wire.trajectory import VersionSpan
from prorl_verl.agent_loop import RolloutServiceAgentLoop
from prorl_verl.desk import Desk, desks_of
from prorl_verl.gateway import Ask, Gateway
from prorl_verl.options import options_of
from prorl_verl.rows import instance_of

ALL: dict[str, Any] = {"prompt_key": "prompt", "whole": None}


def test_a_row_becomes_an_instance():
    row = {
        "prompt": np.array([{"role": "user", "content": "2+2?"}], dtype=object),
        "raw_prompt": [{"role": "user", "content": "2+2?"}],
        "data_source": "math",
        "reward_model": {"ground_truth": np.str_("4"), "weights": np.array([0.5, 1.0])},
        "difficulty": torch.tensor(3),
        "dummy_tensor": torch.tensor([0]),
        "uid": "u",
        "session_id": 0,
        "global_steps": 7,
        "tools_kwargs": {},
    }
    assert instance_of(row, **ALL) == {
        "prompt": [{"role": "user", "content": "2+2?"}],
        "data_source": "math",
        "reward_model": {"ground_truth": "4", "weights": [0.5, 1.0]},
        "difficulty": 3,
    }
    del row["prompt"]
    assert instance_of(row, **ALL)["prompt"] == row["raw_prompt"]


@pytest.mark.parametrize("whole", [{"key": "17"}, '{"key": "17"}'])
def test_a_field_can_be_the_whole_instance(whole):
    assert instance_of({"task": whole, "raw_prompt": []}, **{**ALL, "whole": "task"}) == {"key": "17"}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), "'thing' cannot travel as JSON .it holds a object.*leave it out"),
        (b"bytes", "'thing' .* holds a bytes"),
        ({"deep": [{1, 2}]}, "'thing' .* holds a set"),
        (float("nan"), "'thing' .*Out of range float"),
        (np.array([1.0, np.inf]), "'thing' .*Out of range float"),
    ],
)
def test_what_is_no_json_is_refused_by_name(value, said):
    with pytest.raises(TypeError, match=said):
        instance_of({"thing": value}, **ALL)


def test_fields_that_are_not_there_are_named():
    with pytest.raises(ValueError, match=r"no field 'b'; it has: a"):
        instance_of({"a": 1}, **{**ALL, "whole": "b"})


def test_options_come_from_yaml_and_are_checked():
    given = OmegaConf.create({"urls": ["http://a:1"], "budgets": {"run_s": 60}, "settings": {"max_turns": 3}})
    options = options_of({**given, "name": "prorl", "tools": object(), "processor": None})
    assert options.urls == ("http://a:1",)
    assert options.budgets.run_s == 60
    assert options.settings == {"max_turns": 3}
    with pytest.raises(ValueError, match="unknown field `attemts`"):
        options_of({"urls": ["http://a:1"], "attemts": 3})
    with pytest.raises(ValueError, match="missing required field `urls`"):
        options_of({})
    with pytest.raises(TypeError, match=r"'settings' cannot travel as JSON .it holds a object"):
        options_of({"urls": ["http://a:1"], "settings": {"deep": object()}})


def test_chat_template_kwargs_reach_the_renderer():
    options = options_of({"urls": ["http://a:1"]})
    rendering = options.rendering_of({"enable_thinking": False, "city": "Rome"})
    assert rendering.thinking is False
    assert rendering.variables == {"city": "Rome"}


VERLS = {
    "rollout": {"name": "vllm", "prompt_length": 48, "response_length": 16},
    "model": {"path": "m"},
}


class Pieces(FullyAsyncLLMServerClient):
    """verl's resuming client over engines that say what they are told to."""

    def __init__(self, *pieces: TokenOutput | Exception) -> None:
        super().__init__(config=OmegaConf.create({"actor_rollout_ref": VERLS}))
        self.pieces = list(pieces)
        self.asked: list[dict[str, Any]] = []
        self.sticky: list[str] = []

    async def _acquire_server(self, request_id: str, **_: Any) -> Any:
        self.sticky.append(request_id)
        return "engine", SimpleNamespace(generate=SimpleNamespace(remote=self._remote))

    def _release_server(self, server_id: str, request_id: str | None = None) -> None: ...

    async def _remote(self, **asked: Any) -> TokenOutput:
        self.asked.append(asked)
        piece = self.pieces.pop(0)
        if isinstance(piece, Exception):
            raise piece
        return piece


class Plain(Pieces):
    generate = LLMServerClient.generate


def piece(*ids: int, step: int | None = 0, why: str = "completed") -> TokenOutput:
    return TokenOutput(
        token_ids=list(ids), log_probs=[-0.5] * len(ids), stop_reason=why, extra_fields={"global_steps": step}
    )


def gateway(engines: Any) -> Gateway:
    return Gateway(engines, [2])


def ask(max_tokens: int = 8) -> Ask:
    return Ask(token_ids=[5, 6], request_id="r", sampling_params={"max_tokens": max_tokens, "top_k": 0})


async def test_an_interrupted_reply_goes_on_and_every_token_keeps_its_version(monkeypatch):
    monkeypatch.setattr("prorl_verl.gateway.RESUME_AFTER_S", 0.0)
    aborted = [piece(10, 11, step=3, why="aborted"), piece(step=3, why="aborted"), piece(12, 13, 2, step=4)]
    engines = Pieces(*aborted)
    reply = await gateway(engines).sample("job", ask())
    assert reply["token_ids"] == [entry["token_id"] for entry in reply["logprobs"]["content"]] == [10, 11, 12, 13, 2]
    spans = [(span["version"], span["start"], span["end"]) for span in reply["weight_versions"]]
    assert spans == [("3", 0, 2), ("4", 2, 5)]
    assert reply["finish_reason"] == "stop"
    assert [asked["prompt_ids"] for asked in engines.asked] == [[5, 6], [5, 6, 10, 11], [5, 6, 10, 11]]
    assert [asked["sampling_params"]["max_tokens"] for asked in engines.asked] == [8, 6, 6]
    assert engines.sticky == ["job"] * 3


@pytest.mark.parametrize(
    ("pieces", "finish"),
    [
        ([piece(9, 9, 9)], "stop"),
        ([piece(9, 9, 9, 9)], "length"),
        ([piece(9, 9, 9, 2)], "stop"),
        ([piece(9, why="length")], "length"),
        ([piece(9, 9, 9, 9, why="aborted")], "length"),
    ],
)
async def test_how_a_reply_ended(pieces, finish):
    """verl's vLLM says "completed" whether a reply stopped or was cut."""
    assert (await gateway(Pieces(*pieces)).sample("job", ask(4)))["finish_reason"] == finish


async def test_a_client_that_does_not_resume_hands_on_the_abort():
    reply = await gateway(Plain(piece(9, why="aborted"))).sample("job", ask())
    assert (reply["finish_reason"], reply["token_ids"]) == ("abort", [9])


async def test_our_dialect_reads_the_gateway():
    engines = Pieces(piece(10, 2, step=7), ValueError("the prompt is too long"), RuntimeError("No available servers"))
    async with gateway(engines).at("127.0.0.1") as url, httpx.AsyncClient(trust_env=False) as client:
        dialect = Vllm(client, url, model=None)
        info = await dialect.describe()
        assert (info.model, info.max_context) == ("m", 64)
        await dialect.health()
        sampling = SamplingParams(temperature=0.5, max_tokens=4, stop_token_ids=(2,))
        request = GenerationRequest(prompt_ids=[5, 6], sampling=sampling, request_id="r", session_id="job-1")
        said = await dialect.generate(request)
        assert (said.token_ids, said.logprobs, said.finish) == ([10, 2], [-0.5, -0.5], "stop")
        assert said.weight_spans == [VersionSpan("7", 2)]
        assert said.prompt_echo == [5, 6]
        assert said.logprob_kind == "processed"
        assert engines.sticky == ["job-1"], "all turns of a job go to one engine"
        (asked,) = engines.asked
        assert asked["sampling_params"] == {
            "temperature": 0.5,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "stop_token_ids": [2],
            "logprobs": True,
            "max_tokens": 4,
        }
        with pytest.raises(Exception, match="too long"):
            await dialect.generate(request)
        with pytest.raises(Exception, match="No available servers") as error:
            await dialect.generate(request)
        assert error.value.code == "unreachable", "tried again elsewhere, or when the engines are back"
        await dialect.abort("r")
        assert (await client.get(url.rpartition("/")[0] + "/v1/models")).status_code == 404, "its path is a secret"
        assert (await client.post(f"{url}/inference/v1/generate", content=b"{}")).status_code == 400


async def test_a_caller_who_hangs_up_ends_the_sampling():
    asked, cancelled = asyncio.Event(), asyncio.Event()

    class Endless(Pieces):
        async def _remote(self, **_: Any) -> TokenOutput:
            asked.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise
            raise AssertionError

    async with gateway(Endless()).at("127.0.0.1") as url, httpx.AsyncClient(trust_env=False, timeout=None) as client:
        body = {"token_ids": [1], "request_id": "r", "sampling_params": {"max_tokens": 3}}
        calling = asyncio.create_task(client.post(f"{url}/inference/v1/generate", json=body))
        await asked.wait()
        calling.cancel()
        await cancelled.wait()
        await asyncio.wait({calling})


def made(**options: Any) -> RolloutServiceAgentLoop:
    """As verl makes it."""
    config = {"data": {}, "trainer": {}, "actor_rollout_ref": VERLS}
    return RolloutServiceAgentLoop(
        trainer_config=SimpleNamespace(config=OmegaConf.create(config)),
        server_manager=Pieces(),
        tokenizer=None,
        processor=None,
        hf_model_type="qwen3",
        dataset_cls=dict,
        data_config=SimpleNamespace(config=OmegaConf.create({})),
        tools=object(),
        name="prorl",
        **{"urls": ["http://127.0.0.1:9"], **options},
    )


def test_a_row_becomes_a_job():
    verls = {"temperature": 0.7, "top_p": 1, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
    row = {"uid": "u", "session_id": 3, "data_source": "math"}
    jobs = [loop._request(verls, row) for loop in (made(), made(), made(max_tokens=4))]
    assert [job.sampling_params.max_tokens for job in jobs] == [16, 16, 4]
    assert jobs[0].sampling_params == SamplingParams(temperature=0.7, max_tokens=16)
    assert {job.group_id for job in jobs} == {"u"}
    assert len({job.job_id for job in jobs}) == 3, "an id is never used twice"
    assert all(job.job_id.startswith("u_3.") for job in jobs)


async def test_a_desk_that_does_not_open_is_tried_again():
    engines = Pieces()
    engines.config.actor_rollout_ref.model.custom_chat_template = "{{ messages }}"
    options = options_of({"urls": ["http://127.0.0.1:9"]})
    for _ in range(2):
        with pytest.raises(ValueError, match="custom_chat_template does not reach the rollout servers"):
            await Desk.of(engines, options, [2])
    assert desks_of(engines) == {}
