"""The run of ``core/examples/rl`` with ``python -m verl.trainer.main_ppo`` in place of its own loop: verl's GRPO, the
real server, real sandboxes, and new weights in the engine before every step.

``python learn_lookup.py --seed 0 --out run.json``: on a CPU, where a Hugging Face model stands in the engine's place
(``tests/cpu``). In every step verl's own log-probabilities are compared with the engine's, and the versions of all
tokens with the step. ``--stop-early`` takes our replay buffer; further arguments are verl's own settings.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from omegaconf import OmegaConf

from prorl.client import BlockingClient
from prorl.plugins import discover
from prorl.server.serve import RunningServer
from prorl.server.settings import parse_settings
from prorl_lookup import task
from prorl_lookup.train import EXACT, NotExact, request, rise, versions
from prorl_lookup.warmstart import warm_model

CPU = Path(__file__).parents[1] / "tests" / "cpu"
GOOD_BYE_S = 60.0  # until the last worker's gateway has to be out of the servers' pools
OFF_POLICY = "training/off_policy/trajectory"


def train(
    *,
    seed: int,
    steps: int,
    cache: Path,
    prompts: int = 10,
    samples: int = 8,
    lr: float = 1e-3,
    stop_early: bool = False,
    more: Sequence[str] = (),
) -> dict[str, Any]:
    """The run's record, in the form of ``prorl_lookup.train``. Raises ``NotExact`` for a step whose numbers are not
    those of the policy that sampled, and ``RuntimeError`` with the end of verl's log when verl fails."""
    model = warm_model(cache)
    settings = parse_settings(
        {"server": {"port": 0}, "pipeline": {"init_workers": 8, "run_workers": prompts * samples}}
    )
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as work,
        RunningServer(settings, discover()) as server,
        BlockingClient(server.url) as client,
    ):
        folder = Path(work)
        write_rows(folder / "train.parquet", seed=seed, count=prompts * (steps + 2))
        write_rows(folder / "val.parquet", seed=seed + 1000, count=2)
        write_loop(folder / "agent_loop.yaml", server.url)
        said = [
            f"data.train_batch_size={prompts}",
            f"data.seed={seed}",
            f"actor_rollout_ref.model.path={model}",
            f"actor_rollout_ref.actor.data_loader_seed={seed}",
            f"actor_rollout_ref.actor.optim.lr={lr}",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={prompts}",
            f"actor_rollout_ref.rollout.n={samples}",
            f"trainer.total_training_steps={steps}",
            *(stopping_early(server.url) if stop_early else ()),
            *more,
        ]
        metrics = run_verl(folder, said)
        left = waited_for(client)
    asynchronous = any("trainer_mode=" in setting and "=sync" not in setting for setting in more)
    return {
        "seed": seed,
        "prompts": prompts,
        "samples": samples,
        "lr": lr,
        "versions": {**versions(), **{name: version(name) for name in ("prorl-verl", "verl", "TransferQueue")}},
        "steps": [entry_of(step, numbers, exact=not asynchronous) for step, numbers in enumerate(metrics)],
        "left_registered": left,
        "wall_s": round(time.monotonic() - began, 1),
    }


def entry_of(step: int, numbers: dict[str, float], *, exact: bool) -> dict[str, Any]:
    """What verl logged of a step. ``gap``: the largest difference between a token's log-probability in verl's trainer
    and in the engine; ``lag``: by how many steps the weights of the oldest token were behind."""
    ratios = (numbers["rollout_corr/rollout_is_min"], numbers["rollout_corr/rollout_is_max"])
    entry = {
        "step": step,
        "reward": numbers["critic/score/mean"],
        "gap": max(abs(math.log(ratio)) for ratio in ratios),
        "lag": numbers[f"{OFF_POLICY}_staleness_worst/max"],
        "spans": numbers[f"{OFF_POLICY}_spans/max"],
        "step_s": round(numbers["timing_s/step"], 2),
        **{name: value for name, value in numbers.items() if "/prorl/" in name or "evicted" in name},
    }
    if exact and entry["gap"] > EXACT:
        raise NotExact(f"step {step}: engine and trainer differ by {entry['gap']:.1e}")
    if exact and (entry["lag"], numbers[f"{OFF_POLICY}_staleness/min"], entry["spans"]) != (0, 0, 1):
        raise NotExact(f"step {step}: tokens of other versions: {numbers}")
    return entry


def write_rows(path: Path, seed: int, count: int) -> None:
    """As a verl data set: ``prompt`` must be there, and the task's own row travels as JSON in one column."""
    pd.DataFrame(
        {"data_source": "lookup", "prompt": [{"role": "user", "content": row["key"]}], "task": json.dumps(row)}
        for row in itertools.islice(task.rows(seed), count)
    ).to_parquet(path)


def write_loop(path: Path, url: str) -> None:
    job = request({})
    loop = {
        "name": "prorl",
        "_target_": "prorl_verl.agent_loop.RolloutServiceAgentLoop",
        "urls": [url],
        "domain": job.domain,
        "settings": job.settings,
        "instance_field": "task",
        "max_tokens": job.sampling_params.max_tokens,
    }
    OmegaConf.save(OmegaConf.create([loop]), path)


def stopping_early(url: str) -> list[str]:
    """Our replay buffer, with DAPO's filter."""
    return [
        "trainer.v1.sampler.custom_sampler.path=pkg://prorl_verl.sampler",
        "trainer.v1.sampler.custom_sampler.name=RolloutServiceReplayBuffer",
        f"+trainer.v1.sampler.sampler_kwargs.urls=[{url}]",
        "+trainer.v1.sampler.sampler_kwargs.filter_groups_metric=reward",
        "algorithm.filter_groups.enable=true",
        "algorithm.filter_groups.metric=reward",
    ]


def run_verl(folder: Path, said: Sequence[str]) -> list[dict[str, float]]:
    """verl's trainer, in processes of its own, to its end; what it logged, step by step."""
    rollout, actor = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
    command = [
        *(sys.executable, "-m", "verl.trainer.main_ppo"),
        "algorithm.adv_estimator=grpo",
        "algorithm.norm_adv_by_std_in_grpo=false",
        "algorithm.rollout_correction.rollout_is=token",  # it logs the first importance ratios, token by token
        f"data.train_files={folder / 'train.parquet'}",
        f"data.val_files={folder / 'val.parquet'}",
        "data.max_prompt_length=128",
        "data.max_response_length=96",
        "data.filter_overlong_prompts=false",
        "data.dataloader_num_workers=0",
        "actor_rollout_ref.model.use_remove_padding=false",
        "actor_rollout_ref.model.enable_gradient_checkpointing=false",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        f"{actor}.optim.weight_decay=0.0",
        f"{actor}.ppo_micro_batch_size_per_gpu=40",
        f"{actor}.strategy=fsdp2",  # the first one insists on an accelerator
        f"{actor}.use_torch_compile=false",
        f"{actor}.fsdp_config.use_torch_compile=false",
        f"{actor}.fsdp_config.model_dtype=fp32",
        f"+{actor}.fsdp_config.mixed_precision={{param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}}",
        f"{rollout}.name=hf",
        f"{rollout}.dtype=float32",
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
        "trainer.total_epochs=1",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        "ray_kwargs.ray_init.num_cpus=16",
        "+ray_kwargs.ray_init.num_gpus=1",
        "+ray_kwargs.ray_init.address=local",
        "+ray_kwargs.ray_init.include_dashboard=false",
        *said,
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(CPU), os.environ.get("PYTHONPATH", "")]),
        "VERL_USE_EXTERNAL_MODULES": "verl_on_cpu",
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",
        "VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl"),
        "RAY_AUTH_MODE": "disabled",
        "RAY_DEDUP_LOGS": "0",
        "OMP_NUM_THREADS": "1",
        "HYDRA_FULL_ERROR": "1",
    }
    log = folder / "verl.log"
    with log.open("wb") as out:
        ended = subprocess.run(command, stdout=out, stderr=out, env=environment, cwd=folder, check=False)
    if ended.returncode != 0:
        raise RuntimeError(f"verl ended with {ended.returncode}:\n{log.read_text(errors='replace')[-20_000:]}")
    lines = [json.loads(line)["data"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [numbers for numbers in lines if "critic/score/mean" in numbers]


def waited_for(client: BlockingClient) -> list[str]:
    """The gateways that are still registered when they should have gone: none."""
    deadline = time.monotonic() + GOOD_BYE_S
    while (left := client.status().pool.backends) and time.monotonic() < deadline:
        time.sleep(0.2)
    return [backend.url for backend in left]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "prorl-lookup")
    parser.add_argument("--stop-early", action="store_true")
    parser.add_argument("--out", type=Path, help="where the run's record goes, as JSON")
    given, more = parser.parse_known_args()
    torch.set_num_threads(1)
    record = train(seed=given.seed, steps=given.steps, cache=given.cache, stop_early=given.stop_early, more=more)
    if given.out is not None:
        given.out.write_text(json.dumps(record, indent=1) + "\n")
    worst = max(entry["gap"] for entry in record["steps"])
    print(
        f"reward up by {rise(record, min(10, given.steps // 2)):.2f} in {record['wall_s']:.0f} s; "
        f"logprobs agree to {worst:.1e}"
    )


if __name__ == "__main__":
    main()
