"""TRL learns the task of ``core/examples/rl`` with a real vLLM, whose weights change: minutes, hence ``-m slow``."""

from __future__ import annotations

import importlib.util
import itertools
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

from prorl.client import Prompt
from prorl.testing.engines import VllmEngine
from prorl_trl import FolderWeights, RolloutServiceWorker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
prorl_lookup = pytest.importorskip("prorl_lookup.train", reason="the task is core/examples/rl: pip install it")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if (reason := VllmEngine.available()) is not None:
        pytest.skip(reason)
    return Path(os.environ.get("PRORL_LOOKUP_CACHE") or tmp_path_factory.mktemp("cache"))


def test_grpo_trainer(cache):
    path = Path(__file__).parents[1] / "examples" / "learn_lookup.py"
    spec = importlib.util.spec_from_file_location("learn_lookup", path)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    record = example.train(seed=0, steps=16, cache=cache)
    assert len(record["steps"]) == 16
    assert max(entry["gap"] for entry in record["steps"]) < 1e-4
    assert {entry["untrainable"] for entry in record["steps"]} == {0.0}
    assert prorl_lookup.rise(record, 5) > 0.1


class Remembered(FolderWeights):
    """Keeps a copy of every version."""

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        state = {name: tensor.detach().clone() for name, tensor in iterator}
        vars(self).setdefault("history", {})[self.version + 1] = state
        super().send_weights(iter(state.items()))


def test_async_grpo_trainer(cache, tmp_path, monkeypatch, without_gpu, assert_exact, watch):
    """The real engine under :class:`FolderWeights`, with rollouts under way while its weights change."""
    from prorl_lookup import task  # noqa: PLC0415 - after it is known to be there
    from prorl_lookup.service import Service  # noqa: PLC0415
    from prorl_lookup.train import request  # noqa: PLC0415
    from prorl_lookup.warmstart import warm_model  # noqa: PLC0415

    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    folder = warm_model(cache)
    steps, staleness = 30, 2
    prompts = (
        Prompt(prompt_id=f"{index}", request=request(row)) for index, row in zip(itertools.count(), task.rows(0))
    )
    began = time.monotonic()
    with Service(folder) as service:
        worker = RolloutServiceWorker(service.url, prompts, samples=8, in_flight=64, max_staleness=staleness, buffer=64)
        weights = Remembered(service.weights, tmp_path / "weights", model=folder)
        seen = watch(worker)
        trainer = AsyncGRPOTrainer(
            model=str(folder),
            args=AsyncGRPOConfig(
                output_dir=str(tmp_path / "out"),
                use_cpu=True,
                bf16=False,
                dtype="float32",
                per_device_train_batch_size=48,
                token_budget=0,  # samples are counted, not tokens: a step is 48 of them
                num_generations=8,
                max_steps=steps,
                learning_rate=5e-4,
                lr_scheduler_type="constant",
                max_staleness=staleness,
                weight_sync_steps=1,
                logging_steps=1,
                report_to=[],
                save_strategy="no",
            ),
            train_dataset=Dataset.from_list([{"prompt": "not used"}]),
            rollout_worker=worker,
            weight_transfer=weights,
        )
        trainer.train()
    history = [entry for entry in trainer.state.log_history if "ratio" in entry]
    assert len(history) == steps
    assert abs(history[0]["ratio"] - 1) < 1e-4
    assert abs(history[0]["kl"]) < 1e-6
    assert weights.version == steps + 1
    oldest = max(entry["sample/staleness_max"] for entry in history)
    assert oldest <= staleness
    assert min(row.model_version for row in seen) == 1
    assert max(row.model_version for row in seen) >= steps - staleness
    assert_exact(seen, weights.history, folder)
    rewards = [entry["rollout/reward"] for entry in history if "rollout/reward" in entry]
    first, last = statistics.fmean(rewards[:5]), statistics.fmean(rewards[-5:])
    took_s = time.monotonic() - began
    print(f"AsyncGRPOTrainer: {first:.3f} to {last:.3f}, {len(seen)} samples, staleness {oldest}, {took_s:.0f} s")
    assert last - first > 0.15, rewards
