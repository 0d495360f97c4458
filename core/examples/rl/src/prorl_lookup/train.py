"""``python -m prorl_lookup.train``: warm start, then RL through the real server, and a JSON file with the curve.

::

    for every step
        publish the weights               engine and server name them step-N
        prompts x samples rollouts        server, sandbox, engine; collected as groups
        check                             all tokens of version step-N, first importance ratio 1
        one clipped gradient step
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import json
import platform
import shutil
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from prorl.client import CollectorSettings, Group, GroupCollector, Prompt, RolloutClient, samples_of
from prorl.wire import JobRequest
from prorl_lookup import grpo
from prorl_lookup.lesson import Lesson, known, load, requests
from prorl_lookup.lessons.lookup import LESSON as LOOKUP
from prorl_lookup.service import Service
from prorl_lookup.warmstart import warm_model

EXACT = 1e-4  # how far from 1 the first importance ratio may be


class NotExact(Exception):  # noqa: N818
    """The trainer's numbers are not those of the policy that sampled: training on them would be wrong."""


request = LOOKUP.request  # for other trainers' runs of the same task


def prompts(jobs: Iterator[JobRequest], count: int) -> list[Prompt]:
    return [
        Prompt(prompt_id=f"{number}-{job.domain}", request=job)
        for number, job in enumerate(itertools.islice(jobs, count))
    ]


async def collect(url: str, todo: list[Prompt], samples: int, step: int) -> list[Group]:
    """All groups, whether or not their rewards differ: the curve is the mean of everything. (DAPO leaves out those that
    do not: the collector's default.)"""
    settings = CollectorSettings(samples=samples, wanted=len(todo), in_flight=len(todo) * samples, max_lag=0)
    async with (
        RolloutClient(url) as client,
        GroupCollector(client, todo, settings, informative=lambda _: True) as collector,
    ):
        batch = await collector.collect(step)
    if not batch.complete:
        raise RuntimeError(f"step {step}: {batch.why}; {dict(batch.troubles)}")
    return batch.groups


def train(
    *,
    seed: int,
    steps: int,
    cache: Path,
    taught: Sequence[Lesson] = (LOOKUP,),
    prompts_per_step: int = 10,
    samples: int = 8,
    lr: float = 5e-4,
    save: Path | None = None,
) -> dict[str, Any]:
    """The run's record: what was set, versions, and one entry per step. ``save`` is a folder for the trained model.
    Raises :class:`NotExact`."""
    folder = warm_model(cache, taught)
    model = AutoModelForCausalLM.from_pretrained(folder)
    pad_id = model.config.pad_token_id
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    jobs = requests(taught, seed)
    record: dict[str, Any] = {
        "seed": seed,
        "tasks": [lesson.domain for lesson in taught],
        "prompts": prompts_per_step,
        "samples": samples,
        "lr": lr,
        "warm_start": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()[:16],
        "steps": [],
    }
    began = time.monotonic()
    with Service(folder) as service:
        record["started_s"] = round(time.monotonic() - began, 1)
        record["versions"] = {**versions(), "vllm": service.engine_version()}
        for step in range(steps):
            marks = [time.monotonic()]
            policy = f"step-{step}"
            service.publish(model, policy)
            marks.append(time.monotonic())
            groups = asyncio.run(collect(service.url, prompts(jobs, prompts_per_step), samples, step))
            marks.append(time.monotonic())
            batch = [sample for group in groups for result in group.results for sample in samples_of(result)]
            for sample in batch:
                if {v for v, sampled in zip(sample.versions, sample.mask, strict=True) if sampled} != {policy}:
                    raise NotExact(f"{sample.job_id} was to be sampled from {policy}: {sorted(set(sample.versions))}")
            gains = grpo.advantages([group.rewards for group in groups])
            report = grpo.grpo_step(model, optimizer, batch, gains, pad_id=pad_id)
            marks.append(time.monotonic())
            if report.ratio > EXACT:
                raise NotExact(f"step {step}: the first importance ratio is off by {report.ratio:.1e}")
            rewards = [reward for group in groups for reward in group.rewards]
            sync_s, rollouts_s, train_s = (round(b - a, 2) for a, b in itertools.pairwise(marks))
            entry = {
                "step": step,
                "reward": sum(rewards) / len(rewards),
                "by_task": means(groups),
                "informative": sum(len(set(group.rewards)) > 1 for group in groups),
                "gap": report.gap,
                "ratio_off": report.ratio,
                "tokens": report.tokens,
                "sync_s": sync_s,
                "rollouts_s": rollouts_s,
                "train_s": train_s,
            }
            record["steps"].append(entry)
            print(
                f"seed {seed} step {step:3d}: reward {entry['reward']:.3f}, logprobs agree to {report.gap:.1e}, "
                f"weights {sync_s} s, {len(rewards)} rollouts {rollouts_s} s, step {train_s} s",
                flush=True,
            )
    record["wall_s"] = round(time.monotonic() - began, 1)
    if save is not None:
        shutil.copytree(folder, save, dirs_exist_ok=True)  # the tokenizer
        model.save_pretrained(save)
    return record


def means(groups: Sequence[Group]) -> dict[str, float]:
    """The mean reward of each domain."""
    rewards: dict[str, list[float]] = {}
    for group in groups:
        rewards.setdefault(group.prompt.request.domain or "", []).extend(group.rewards)
    return {domain: sum(some) / len(some) for domain, some in sorted(rewards.items())}


def versions() -> dict[str, str]:
    ours = {name: version(name) for name in ("prorl", "torch", "transformers")}
    return {**ours, "python": platform.python_version()}


def rise(record: dict[str, Any], window: int = 10) -> float:
    """Mean reward of the last ``window`` steps over that of the first ``window``."""
    rewards = [entry["reward"] for entry in record["steps"]]
    return float(sum(rewards[-window:]) - sum(rewards[:window])) / window


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    several = f"one or several of {', '.join(known())}, or of your own modules, joined by commas"
    parser.add_argument("--tasks", default="lookup", help=several)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "prorl-lookup")
    parser.add_argument("--threads", type=int, default=1, help="of torch in the trainer")
    parser.add_argument("--out", type=Path, help="where the run's record goes, as JSON")
    parser.add_argument("--save", type=Path, help="a folder for the trained model")
    given = parser.parse_args()
    try:
        taught = [load(name) for name in given.tasks.split(",")]
    except ValueError as error:
        parser.error(str(error))
    torch.set_num_threads(given.threads)
    disable_progress_bar()  # one per saved model otherwise
    record = train(
        seed=given.seed,
        steps=given.steps,
        cache=given.cache,
        taught=taught,
        prompts_per_step=given.prompts,
        samples=given.samples,
        lr=given.lr,
        save=given.save,
    )
    if given.out is not None:
        given.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"reward up by {rise(record, min(10, given.steps // 2)):.2f} in {record['wall_s']:.0f} s")


if __name__ == "__main__":
    main()
