"""The agent server as Gym's own app, over HTTP, before a real rollout server and NeMo RL's HTTP engine."""

from __future__ import annotations

import json
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

import httpx
import pytest

pytest.importorskip("nemo_gym", reason="nemo-gym is not installed: it wants Python 3.12 (tox run -e nemo-gym)")

import uvicorn
from nemo_gym.base_resources_server import BaseVerifyResponse
from nemo_gym.config_types import BaseServerConfig, ModelServerRef
from nemo_gym.openai_utils import (
    NeMoGymFunctionCallOutput,
    NeMoGymResponseFunctionToolCallForTraining,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputMessageForTraining,
)
from nemo_gym.server_utils import ServerClient
from nemo_rl_contract import check_answer
from omegaconf import OmegaConf

from prorl.testing.scripted import ScriptedEngine
from prorl.testing.scripted.chat import NemoRlSpeech
from prorl_nemo_rl.agent import ProrlAgent, ProrlAgentConfig

TEMPERATURE = 0.7  # the trainer's: the engine refuses others


def agent(scene: Any, *, base_url: object = None, model: str = "policy", **rollouts: Any) -> ProrlAgent:
    """As Gym's ``run_webserver`` makes it from its global config."""
    policy = {"entrypoint": "app.py", "base_url": base_url or [scene.base_url], "api_key": "none", "model": model}
    config = {"policy_model": {"responses_api_models": {"vllm_model": policy}}}
    return ProrlAgent(
        config=ProrlAgentConfig(
            name="prorl_agent",
            host="127.0.0.1",
            port=0,
            entrypoint="app.py",
            model_server=ModelServerRef(type="responses_api_models", name="policy_model"),
            rollouts=scene.rollouts(**rollouts),
        ),
        server_client=ServerClient(
            head_server_config=BaseServerConfig(host="127.0.0.1", port=1), global_config_dict=OmegaConf.create(config)
        ),
    )


@contextmanager
def served(server: ProrlAgent) -> Iterator[httpx.Client]:
    app = server.setup_webserver()
    server.setup_liveness(app)
    server.setup_exception_middleware(app)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        uvicorn_server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=uvicorn_server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            with httpx.Client(base_url=url, timeout=120) as client:
                yield client
        finally:
            uvicorn_server.should_exit = True
            thread.join()


def hang_up(gym: httpx.Client, row: dict[str, Any], *, when: Callable[[], None]) -> None:
    """Ask for a rollout, and close the connection after ``when`` has returned."""
    asking = HTTPConnection(str(gym.base_url.host), gym.base_url.port)
    asking.request("POST", "/run", json.dumps(row), {"content-type": "application/json"})
    when()
    asking.close()


def test_a_rollout_with_a_tool(setting, make_row):
    scene = setting()
    with served(agent(scene)) as gym:
        answered = gym.post("/run", json=make_row())
    assert answered.status_code == 200, answered.text
    found = answered.json()
    assert check_answer(found) == []
    response = BaseVerifyResponse.model_validate(found).response
    assert [type(item) for item in response.output] == [
        NeMoGymResponseOutputMessage,
        NeMoGymResponseFunctionToolCallForTraining,
        NeMoGymFunctionCallOutput,
        NeMoGymResponseOutputMessageForTraining,
    ]
    assert (found["reward"], found["instance_config"]) == (1.0, {"mask_sample": False})
    call, last = response.output[1], response.output[3]
    assert [call.prompt_token_ids, last.prompt_token_ids] == [each.prompt_ids for each in scene.engine.requests]
    assert last.prompt_token_ids[: len(call.prompt_token_ids)] == call.prompt_token_ids
    assert (call.name, last.content[0].text) == ("think", "It is 42.")
    sampling = scene.engine.requests[0].sampling
    assert (sampling["temperature"], sampling["top_p"], sampling["max_tokens"]) == (TEMPERATURE, 1.0, 256)


@pytest.mark.parametrize("echoes", [True, False], ids=["ids in the message", "ids in the logprobs"])
def test_a_prefix_is_what_the_engine_goes_on_from(setting, make_row, echoes):
    scene = setting(echoes=echoes)
    with served(agent(scene)) as gym:
        assert gym.post("/run", json=make_row()).json()["instance_config"] == {"mask_sample": False}
    first, second = scene.engine.speech.bodies
    assert "required_prefix_token_ids" not in first
    assert second["required_prefix_token_ids"][: len(scene.engine.requests[0].prompt_ids)] == (
        scene.engine.requests[0].prompt_ids
    )


def test_another_temperature_than_the_trainers_is_a_masked_sample_that_says_so(setting, make_row):
    row = make_row()
    row["responses_create_params"]["temperature"] = 1.0
    with served(agent(setting(), attempts=1)) as gym:
        found = gym.post("/run", json=row).json()
    assert check_answer(found) == []
    assert found["instance_config"] == {"mask_sample": True}
    assert "must be those of its policy.generation settings" in found["rollout"]["error"]["message"]


@pytest.mark.parametrize(
    ("broken", "attempts", "masked", "calls"),
    [(1, 2, False, 2), (True, 2, True, 2), (True, 3, True, 3), (1, 1, True, 1)],
)
def test_a_broken_sandbox_is_tried_again_and_then_masked(setting, make_row, broken, attempts, masked, calls):
    with served(agent(setting(), attempts=attempts)) as gym:
        found = gym.post("/run", json=make_row(broken=broken)).json()
    assert check_answer(found) == []
    assert (found["instance_config"]["mask_sample"], found["masked"]) == (masked, float(masked))
    assert found["rollout"]["job_id"].endswith(f".{calls}")
    assert (found["rollout"]["masked_because"] or "").endswith("no room" if masked else "")


def test_a_plain_vllm_behind_gym_alone(setting, make_row):
    scene = setting()
    with (
        ScriptedEngine(lambda _: "It is 42.") as vllm,
        served(agent(scene, base_url=f"{vllm.url}/v1", model=vllm.model, dialect=None, tokenizer=None)) as gym,
    ):
        found = gym.post("/run", json=make_row()).json()
        (asked,) = vllm.requests
    assert check_answer(found) == []
    assert (found["reward"], found["instance_config"]) == (1.0, {"mask_sample": False})
    assert found["response"]["output"][-1]["prompt_token_ids"] == asked.prompt_ids
    assert scene.engine.requests == []


def test_every_engine_of_the_policys_is_used(setting, make_row, until):
    scene = setting()
    with ScriptedEngine(lambda _: "It is 42.", speech=NemoRlSpeech(temperature=TEMPERATURE)) as second:
        engines, urls = (scene.engine, second), [scene.base_url, f"{second.url}/v1"]
        for engine in engines:
            engine.hold()
        with served(agent(scene, base_url=urls)) as gym, ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(gym.post, "/run", json=make_row()) for _ in range(4)]
            until(lambda: all(engine.in_flight for engine in engines))
            for engine in engines:
                engine.let_go()
            assert [each.result().json()["reward"] for each in asked] == [1.0] * 4


def test_a_result_that_lacks_the_servers_signature_is_masked(setting, make_row, tmp_path):
    """The server has no key here: whoever asks for signatures takes nothing from it."""
    key = tmp_path / "key"
    key.write_text(secrets.token_hex())
    with served(agent(setting(), key_file=str(key))) as gym:
        found = gym.post("/run", json=make_row()).json()
    assert check_answer(found) == []
    assert found["instance_config"] == {"mask_sample": True}
    assert "is not signed" in found["rollout"]["masked_because"]


def test_a_row_that_is_no_job_says_what_it_lacks(setting, make_row):
    row = make_row()
    with served(agent(setting())) as gym:
        nothing = gym.post("/run", json={**row, "instance": None})
        hot = gym.post("/run", json={**row, "responses_create_params": {"input": [], "temperature": -1.0}})
        stranger = gym.post("/run", json={**row, "domain": "unheard-of"})
        assert (gym.post("/v1/responses", json={"input": []})).status_code == 501
    assert (nothing.status_code, "$.instance" in nothing.json()["detail"]) == (422, True)
    assert (hot.status_code, "temperature" in hot.json()["detail"]) == (422, True)
    assert (stranger.status_code, "unheard-of" in stranger.json()["detail"]) == (404, True)


def test_who_hangs_up_cancels(setting, make_row, until):
    scene = setting()
    scene.engine.hold()
    with served(agent(scene)) as gym:
        hang_up(gym, make_row(), when=lambda: until(lambda: scene.engine.in_flight == 1))
        until(lambda: scene.engine.aborted == 1)
        until(lambda: scene.lab.client.status().stages["run"].busy == 0)


def test_a_row_that_is_sent_again_is_a_rollout_anew(setting, make_row, until):
    """Gym sends one again when its connection broke."""
    scene = setting()
    scene.engine.hold()
    with served(agent(scene)) as gym:
        hang_up(gym, make_row(), when=lambda: until(lambda: scene.engine.in_flight == 1))
        until(lambda: scene.engine.aborted == 1)
        scene.engine.let_go()
        assert gym.post("/run", json=make_row()).json()["reward"] == 1.0


def test_equal_rows_are_rollouts_of_their_own(setting, make_row):
    scene = setting()
    with served(agent(scene)) as gym, ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: gym.post("/run", json=make_row()).json(), range(4)))
    assert len({each["rollout"]["job_id"] for each in found}) == 4
    assert len({each["rollout"]["group_id"] for each in found}) == 1
    assert len(scene.engine.requests) == 8


def test_stopping_the_agent_server_cancels_what_runs(setting, make_row, until):
    scene = setting()
    scene.engine.hold()
    with ThreadPoolExecutor(1) as pool, served(agent(scene)) as gym:
        pool.submit(httpx.post, f"{gym.base_url}/run", json=make_row(), timeout=120)
        until(lambda: scene.engine.in_flight == 1)
    until(lambda: scene.engine.aborted == 1)


def test_an_engine_that_answers_late_is_waited_for(setting, make_row):
    """NeMo RL reserves its engines' addresses, starts Gym, and loads the model meanwhile."""
    scene = setting()
    late = ScriptedEngine(lambda _: "It is 42.", speech=NemoRlSpeech(temperature=TEMPERATURE))
    with late:
        scene.base_url = f"{late.url}/v1"
    with served(agent(scene)) as gym, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(gym.post, "/run", json=make_row())
        with pytest.raises(TimeoutError):
            asked.result(timeout=3.0)
        with late:  # on the same port
            assert asked.result().json()["reward"] == 1.0
