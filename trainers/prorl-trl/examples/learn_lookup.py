"""The run of ``core/examples/rl`` with TRL's ``GRPOTrainer`` in place of its own loop.

``python learn_lookup.py --seed 0 --out run.json``: warm start, real engine, real server, real sandboxes. Before every
step the trainer's own log-probabilities are compared with the engine's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers.utils.logging import disable_progress_bar
from trl import GRPOConfig, GRPOTrainer

from prorl_lookup import task
from prorl_lookup.service import Service
from prorl_lookup.train import EXACT, NotExact, request, rise, versions
from prorl_lookup.warmstart import warm_model
from prorl_trl import FolderPublisher, RolloutServiceFunc, service_reward


def train(
    *, seed: int, steps: int, cache: Path, prompts: int = 10, samples: int = 8, lr: float = 5e-4
) -> dict[str, Any]:
    """The run's record, in the form of ``prorl_lookup.train``."""
    folder = warm_model(cache)
    rows = itertools.islice(task.rows(seed), prompts * steps)
    data = [{"prompt": f"{index}: {row['key']}", "instance": row} for index, row in enumerate(rows)]
    gaps: list[float] = []
    began = time.monotonic()
    with Service(folder) as service, tempfile.TemporaryDirectory() as work:
        engine = service.engine_version()
        rollouts = RolloutServiceFunc.from_dataset(
            service.url,
            data,
            request({}),
            publish=FolderPublisher(service.weights, Path(work) / "weights"),
        )

        def checked(prompts: list[Any], trainer: Any) -> dict[str, Any]:
            output = rollouts(prompts, trainer)
            gaps.append(gap(trainer.model, output))
            if gaps[-1] > EXACT:
                raise NotExact(f"step {len(gaps) - 1}: engine and trainer differ by {gaps[-1]:.1e}")
            return output

        args = GRPOConfig(
            output_dir=work,
            use_cpu=True,
            bf16=False,
            per_device_train_batch_size=prompts * samples,
            num_generations=samples,
            max_steps=steps,
            learning_rate=lr,
            lr_scheduler_type="constant",
            scale_rewards="none",
            seed=seed,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            model=str(folder),
            args=args,
            train_dataset=Dataset.from_list(data),
            reward_funcs=service_reward,
            rollout_func=checked,
        )
        trainer.train()
    log = [entry for entry in trainer.state.log_history if "reward" in entry]
    return {
        "seed": seed,
        "prompts": prompts,
        "samples": samples,
        "lr": lr,
        "versions": {**versions(), "vllm": engine, **{name: version(name) for name in ("prorl-trl", "trl")}},
        "steps": [
            {"step": step, "reward": entry["reward"], "gap": gap, "untrainable": entry["rollouts/untrainable"]}
            for step, (entry, gap) in enumerate(zip(log, gaps, strict=True))
        ],
        "wall_s": round(time.monotonic() - began, 1),
    }


def gap(model: Any, output: dict[str, Any]) -> float:
    """The largest difference between the engine's logprob of a sampled token and the model's own."""
    worst = 0.0
    for prompt, ids, logprobs, mask in zip(
        output["prompt_ids"], output["completion_ids"], output["logprobs"], output["env_mask"], strict=True
    ):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        own = logits.log_softmax(-1).gather(-1, torch.tensor(ids)[:, None])[:, 0]
        worst = max(worst, ((own - torch.tensor(logprobs)).abs() * torch.tensor(mask)).max().item())
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "prorl-lookup")
    parser.add_argument("--threads", type=int, default=1, help="of torch in the trainer")
    parser.add_argument("--out", type=Path, help="where the run's record goes, as JSON")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    disable_progress_bar()
    record = train(seed=given.seed, steps=given.steps, cache=given.cache)
    if given.out is not None:
        given.out.write_text(json.dumps(record, indent=1) + "\n")
    worst = max(entry["gap"] for entry in record["steps"])
    print(
        f"reward up by {rise(record, min(10, given.steps // 2)):.2f} in {record['wall_s']:.0f} s; "
        f"logprobs agree to {worst:.1e}"
    )


if __name__ == "__main__":
    main()
