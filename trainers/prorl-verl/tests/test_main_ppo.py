"""``python -m verl.trainer.main_ppo`` itself: GRPO on the lookup task of ``core/examples/rl``, with the real server,
real sandboxes, real gradient steps, and new weights in the engine before every step.

Minutes long, so marked slow (``tox run -e verl-slow``). ``PRORL_LOOKUP_CACHE`` may name a folder where the warm-started
model is kept, ``PRORL_VERL_STEPS`` says how many steps (12).
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from omegaconf import OmegaConf

from prorl.client import BlockingClient
from prorl.plugins import discover
from prorl.server.serve import RunningServer
from prorl.server.settings import parse_settings

prorl_lookup = pytest.importorskip("prorl_lookup", reason="the task is core/examples/rl: pip install it")
from prorl_lookup import task  # noqa: E402 - after it is known to be there
from prorl_lookup.warmstart import warm_model  # noqa: E402

HERE = Path(__file__).parent
STEPS = int(os.environ.get("PRORL_VERL_STEPS", "12"))
PROMPTS, SAMPLES = 10, 8


def write_rows(path: Path, seed: int, count: int) -> None:
    """As a verl data set: ``prompt`` must be there, and the task's own row travels as JSON in one column."""
    pd.DataFrame(
        {
            "data_source": "lookup",
            "prompt": [{"role": "user", "content": row["key"]}],
            "task": json.dumps(row),
        }
        for row in itertools.islice(task.rows(seed), count)
    ).to_parquet(path)


def train(url: str, model: Path, folder: Path, *overrides: str, steps: int = STEPS) -> list[dict[str, Any]]:
    """Run verl to its end; returns what it logged, step by step."""
    write_rows(folder / "train.parquet", seed=0, count=PROMPTS * (steps + 2))
    write_rows(folder / "val.parquet", seed=1, count=2)
    loop = {
        "name": "prorl",
        "_target_": "prorl_verl.agent_loop.RolloutServiceAgentLoop",
        "urls": [url],
        "domain": "lookup",
        "instance_field": "task",
        "max_tokens": 24,
        "settings": {"max_turns": 3},
    }
    OmegaConf.save(OmegaConf.create([loop]), folder / "agent_loop.yaml")
    rollout, actor = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
    command = [
        *(sys.executable, "-m", "verl.trainer.main_ppo"),
        "algorithm.adv_estimator=grpo",
        "algorithm.norm_adv_by_std_in_grpo=false",
        f"data.train_files={folder / 'train.parquet'}",
        f"data.val_files={folder / 'val.parquet'}",
        f"data.train_batch_size={PROMPTS}",
        "data.max_prompt_length=128",
        "data.max_response_length=96",
        "data.filter_overlong_prompts=false",
        "data.dataloader_num_workers=0",
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.model.use_remove_padding=false",
        "actor_rollout_ref.model.enable_gradient_checkpointing=false",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        f"{actor}.optim.lr=1e-3",
        f"{actor}.optim.weight_decay=0.0",
        f"{actor}.ppo_mini_batch_size={PROMPTS}",
        f"{actor}.ppo_micro_batch_size_per_gpu=40",
        f"{actor}.strategy=fsdp2",  # the first one insists on an accelerator
        f"{actor}.use_torch_compile=false",
        f"{actor}.fsdp_config.use_torch_compile=false",
        f"{actor}.fsdp_config.model_dtype=fp32",
        f"+{actor}.fsdp_config.mixed_precision={{param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}}",
        f"{rollout}.name=hf",
        f"{rollout}.dtype=float32",
        f"{rollout}.n={SAMPLES}",
        f"{rollout}.load_format=auto",
        f"{rollout}.calculate_log_probs=true",
        f"{rollout}.tensor_model_parallel_size=1",
        f"{rollout}.log_prob_micro_batch_size_per_gpu=80",
        f"{rollout}.agent.num_workers=1",
        f"{rollout}.agent.default_agent_loop=prorl",
        f"{rollout}.agent.agent_loop_config_path={folder / 'agent_loop.yaml'}",
        "reward.num_workers=1",
        "trainer.device=cpu",
        "trainer.n_gpus_per_node=1",
        "trainer.nnodes=1",
        "trainer.logger=[console,file]",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
        "trainer.resume_mode=disable",
        f"trainer.default_local_dir={folder / 'checkpoints'}",
        f"trainer.total_training_steps={steps}",
        "trainer.total_epochs=1",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        "ray_kwargs.ray_init.num_cpus=16",
        "+ray_kwargs.ray_init.num_gpus=1",
        "+ray_kwargs.ray_init.address=local",
        "+ray_kwargs.ray_init.include_dashboard=false",
        *overrides,
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE / "cpu"), os.environ.get("PYTHONPATH", "")]),
        "VERL_USE_EXTERNAL_MODULES": "verl_on_cpu",
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",
        "VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl"),
        "RAY_AUTH_MODE": "disabled",
        "RAY_DEDUP_LOGS": "0",
        "OMP_NUM_THREADS": "1",
        "HYDRA_FULL_ERROR": "1",
    }
    with (folder / "verl.log").open("wb") as log:
        ended = subprocess.run(command, stdout=log, stderr=log, env=environment, cwd=folder, check=False)
    assert ended.returncode == 0, (folder / "verl.log").read_text(errors="replace")[-20_000:]
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["data"] for line in lines]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_verl_learns_from_the_service(tmp_path):
    model = warm_model(Path(os.environ.get("PRORL_LOOKUP_CACHE") or tmp_path))
    with (
        RunningServer(
            parse_settings({"server": {"port": 0}, "pipeline": {"init_workers": 8, "run_workers": 64}}), discover()
        ) as server,
        BlockingClient(server.url) as client,
    ):
        metrics = train(server.url, model, tmp_path)
        for _ in range(600):
            if not (left := client.status().pool.backends):
                break
            time.sleep(0.1)
    scores = [step["critic/score/mean"] for step in metrics if "critic/score/mean" in step]
    print("scores:", [round(score, 3) for score in scores])
    assert len(scores) == STEPS
    third = max(1, STEPS // 3)
    assert sum(scores[-third:]) > sum(scores[:third]) + 0.05 * third, scores
    for step in metrics[:STEPS]:
        # The first importance ratio: what the trainer computes for the sampled tokens against what the engine said.
        assert step["training/rollout_probs_diff_max"] < 1e-4
    assert left == [], "the worker's gateway has said good-bye"
