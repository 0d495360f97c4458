"""The real verl on a CPU: its own worker, load balancer and client, and a Hugging Face model where vLLM would be."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hydra
import pytest
import ray
import relay
from hf_engine import HfEngine
from omegaconf import DictConfig, OmegaConf
from relay import PROMPT, RESPONSE
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from prorl.plugins import discover
from prorl.server.serve import RunningServer
from prorl.server.settings import parse_settings
from prorl.testing.tinymodel import write_model

HERE = Path(__file__).parent
RAY = {"RAY_AUTH_MODE": "disabled", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "TOKENIZERS_PARALLELISM": "false"}


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_model(folder)
    return folder


@pytest.fixture(scope="session")
def service() -> Iterator[RunningServer]:
    registry = discover()
    registry.handlers["relay"] = relay.RECORD
    with RunningServer(parse_settings({"server": {"port": 0}}), registry) as server:
        yield server


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    # Ray's workers are other processes: they find what is here by this.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE / "cpu"), os.environ.get("PYTHONPATH", "")])
    os.environ.update(RAY)
    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=True)
    yield
    ray.shutdown()


@pytest.fixture
def configure(model: Path, service: RunningServer, tmp_path: Path) -> Callable[..., DictConfig]:
    """verl's own configuration, with ours as the agent loop. ``loop`` holds settings of the agent loop's YAML."""

    def make(*overrides: str, **loop: Any) -> DictConfig:
        entry = {
            "name": "prorl",
            "_target_": "prorl_verl.agent_loop.RolloutServiceAgentLoop",
            "urls": [service.url],
            **loop,
        }
        path = tmp_path / "agent_loop.yaml"
        OmegaConf.save(OmegaConf.create([entry]), path)
        with hydra.initialize_config_module("verl.trainer.config", version_base=None):
            return hydra.compose(
                "ppo_trainer",
                [
                    "algorithm.adv_estimator=grpo",
                    "actor_rollout_ref.rollout.name=vllm",
                    f"actor_rollout_ref.model.path={model}",
                    f"data.max_prompt_length={PROMPT}",
                    f"data.max_response_length={RESPONSE}",
                    "actor_rollout_ref.rollout.calculate_log_probs=true",
                    "actor_rollout_ref.rollout.agent.num_workers=1",
                    "actor_rollout_ref.rollout.agent.default_agent_loop=prorl",
                    f"actor_rollout_ref.rollout.agent.agent_loop_config_path={path}",
                    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
                    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
                    *overrides,
                ],
            )

    return make


class Engines:
    """``count`` engines behind verl's own load balancer."""

    def __init__(self, model: Path, count: int = 1) -> None:
        engine = ray.remote(HfEngine).options(max_concurrency=1000)
        self.handles = {f"engine-{n}": engine.remote(str(model), seed=n) for n in range(count)}
        self.balancer = ray.remote(GlobalRequestLoadBalancer).remote(servers=self.handles)

    def client(self, config: DictConfig, kind: type[LLMServerClient] = LLMServerClient) -> LLMServerClient:
        return kind(config=config, load_balancer_handle=self.balancer)

    def close(self) -> None:
        for actor in [*self.handles.values(), self.balancer]:
            ray.kill(actor)


@pytest.fixture(scope="session")
def engines(cluster: None, model: Path) -> Iterator[Engines]:
    engines = Engines(model)
    yield engines
    engines.close()
