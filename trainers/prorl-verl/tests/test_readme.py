"""The page's configuration is what verl and this package read, and its table is what was run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import hydra
from omegaconf import OmegaConf
from verl.utils.import_utils import load_extern_type

from prorl_verl.options import Options, options_of, read
from prorl_verl.sampler import RolloutServiceReplayBuffer, Settings

HERE = Path(__file__).parents[1]
README = (HERE / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_agent_loop_is_read_with_all_that_may_be_said():
    (page,) = blocks("yaml")
    (entry,) = OmegaConf.create(re.sub(r"^  # ", "  ", page, flags=re.MULTILINE))
    assert hydra.utils.get_class(entry.pop("_target_")).__name__ == "RolloutServiceAgentLoop"
    options = options_of(entry)
    assert options.urls == ("http://node7:8089", "http://node8:8089")
    assert set(entry) - {"name"} <= set(Options.__struct_fields__)


def test_verl_takes_the_settings():
    said = [word for page in blocks("bash") for word in shlex.split(page.replace("\\\n", " "), comments=True)]
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        config = hydra.compose("ppo_trainer", [word for word in said if "=" in word])
    assert config.actor_rollout_ref.rollout.agent.default_agent_loop == "prorl"
    sampler = config.trainer.v1.sampler
    assert load_extern_type(sampler.custom_sampler.path, sampler.custom_sampler.name) is RolloutServiceReplayBuffer
    settings = read(Settings, sampler.sampler_kwargs, "sampler_kwargs")
    assert settings.filter_groups_metric == config.algorithm.filter_groups.metric


def test_the_table_is_what_was_run():
    runs = json.loads((HERE / "curve.json").read_text())
    assert [run["seed"] for run in runs] == [0, 1, 2]
    for run in runs:
        assert run["rise"] >= 0.3
        gap = f"{run['largest_gap']:.1e}".replace("e-0", "e-")
        cells = [f"{run[name]:.2f}" for name in ("first_ten", "last_ten", "rise")]
        assert f"| {run['seed']} | {' | '.join(cells)} | {gap} | {run['wall_s']:.0f} |" in README
