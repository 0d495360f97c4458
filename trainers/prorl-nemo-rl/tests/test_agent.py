"""The agent server as Gym's own app, over HTTP, before a real rollout server and NeMo RL's HTTP engine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

pytest.importorskip("nemo_gym", reason="nemo-gym is not installed: it wants Python 3.12 (tox run -e nemo-rl)")

import uvicorn
from nemo_gym.base_resources_server import BaseVerifyResponse
from nemo_gym.config_types import BaseServerConfig, ModelServerRef
from nemo_gym.server_utils import ServerClient
from omegaconf import OmegaConf

from prorl_nemo_rl.agent import ProrlAgent, ProrlAgentConfig


def agent(scene: Any, **rollouts: Any) -> ProrlAgent:
    """As Gym's ``run_webserver`` makes it from its global config."""
    model = {"entrypoint": "app.py", "base_url": [scene.base_url], "api_key": "dummy_key", "model": "policy"}
    config = {"policy_model": {"responses_api_models": {"vllm_model": model}}}
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


def test_a_rollout_with_a_tool(setting: Callable[..., Any], make_row: Callable[..., Any]) -> None:
    scene = setting()
    with served(agent(scene)) as gym:
        answered = gym.post("/run", json=make_row())
    assert answered.status_code == 200, answered.text
    found = answered.json()
    BaseVerifyResponse.model_validate(found)
    assert (found["reward"], found["instance_config"]) == (1.0, {"mask_sample": False})
