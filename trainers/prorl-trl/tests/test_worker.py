"""``RolloutServiceWorker`` by itself and under TRL's real ``AsyncGRPOTrainer``, on the real service."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

from prorl.client import Prompt
from prorl.wire import JobRequest
from prorl_trl import RolloutServiceWorker


def prompts(**instance: Any) -> Iterator[Prompt]:
    for index in itertools.count():
        request = JobRequest(domain="letters", instance={"name": f"row-{index}", **instance})
        yield Prompt(prompt_id=f"row-{index}", request=request)


@pytest.fixture
def start(bench):
    """Starts workers, and ends them."""
    started = []

    def start(rows, **options):
        worker = RolloutServiceWorker(bench.url, rows, **{"samples": 4, "in_flight": 8, **options})
        started.append(worker)
        worker.start()
        return worker

    yield start
    for worker in started:
        worker.stop()


def drain(worker, count):
    return [worker.rollout_buffer.get(timeout=120) for _ in range(count)]


def complaint(worker):
    try:
        worker.check_health(600.0)
    except RuntimeError as error:
        return error
    return None


def metrics(worker):
    """What it has told since the last look."""
    found: dict[str, list[Any]] = {}
    while True:
        try:
            for name, value in worker.metrics_queue.get_nowait().items():
                found.setdefault(name, []).append(value)
        except queue.Empty:
            return found


def test_samples_are_what_the_policy_said(bench, start, model_folder):
    bench.release("0")
    worker = start(prompts(turns=2))
    samples = drain(worker, 8)
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    for sample in samples:
        ids = torch.from_numpy(sample.input_ids)
        with torch.no_grad():
            own = model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1).gather(-1, ids[1:, None])[:, 0].numpy()
        mask = sample.completion_mask[1:]
        assert np.abs((own - sample.old_log_probs[1:]) * mask).max() < 1e-4
        assert sample.completion_mask[0] == 0
        assert 0 < mask.sum() < len(mask)
        assert sample.model_version == 0
        assert [turn["role"] for turn in sample.completion] == ["assistant", "user", "assistant"]
    for group in (samples[:4], samples[4:]):
        assert len({sample.group_id for sample in group}) == 1
        assert sum(sample.advantage for sample in group) == pytest.approx(0.0, abs=1e-5)
        assert np.std([sample.advantage for sample in group]) == pytest.approx(1.0, abs=1e-3)
    worker.check_health(60.0)


def test_a_full_buffer_holds_the_rollouts_back(bench, start, until):
    bench.release("0")
    # A group waits for room in the buffer and one is ready behind it; of at most 8 more a rollout is still in flight.
    most = 4 * (1 + 1 + 8)
    worker = start(prompts(), buffer=2, max_staleness=1, informative=lambda _: True)
    until(worker.rollout_buffer.full)
    with pytest.raises(AssertionError):
        until(lambda: len(bench.lab.engine.requests) > most, within_s=3.0)
    drain(worker, most)
    until(lambda: len(bench.lab.engine.requests) > most)


def test_groups_that_teach_nothing_are_told_and_not_handed_over(bench, start, until):
    bench.release("0")
    worker = start(prompts(), informative=lambda group: int(group.prompt.prompt_id[4:]) % 2 == 0)
    samples = drain(worker, 8)
    assert {sample.group_id for sample in samples} == {1, 2}
    names = {sample.prompt[0]["content"].split("row-")[1].split("<")[0] for sample in samples}
    assert all(int(name) % 2 == 0 for name in names)
    told: list[tuple[float, float]] = []

    def both_kinds():
        found = metrics(worker)
        assert all(count == 4 for _, count in found.get("rollout/reward", ()))
        told.extend(found.get("rollout/informative", ()))
        return {(0.0, 1.0), (1.0, 1.0)} == set(told)

    until(both_kinds)


def test_old_rollouts_are_cancelled_at_the_service(bench, start, until):
    bench.release("0")
    bench.policy.delays = {"row-1": 600.0}
    bench.lab.engine.hold()
    worker = start(prompts(), max_staleness=1, informative=lambda _: True)
    until(lambda: bench.lab.engine.in_flight == 8)
    worker.update_model_version(5)
    bench.lab.engine.let_go()
    assert {sample.model_version for sample in drain(worker, 4)} == {0}
    until(lambda: bench.lab.engine.aborted == 4)
    drain(worker, 4)  # the next batch is of the new step, and tells what it has cost
    assert sum(metrics(worker)["rollout/stale_total"]) >= 4


def test_a_sample_is_as_old_as_its_oldest_token(bench, start, until):
    bench.release("3")
    bench.lab.engine.weight_version = "3"
    bench.lab.engine.hold()
    worker = start(prompts(), max_staleness=8)
    until(lambda: bench.lab.engine.in_flight == 8)
    bench.lab.engine.weight_version = "4"  # replies that are held now carry both
    bench.lab.engine.let_go()
    first = drain(worker, 4)
    assert {sample.model_version for sample in first} == {3}
    until(lambda: 4 in {sample.model_version for sample in drain(worker, 4)})


def test_what_fails_again_and_again_ends_the_training(bench, start, until):
    bench.release("0")
    worker = start(prompts(broken=99), attempts=1)
    error = until(lambda: complaint(worker))
    assert "sandbox/disk" in str(error)
    assert type(error.__cause__).__name__ == "Stalled"


def test_prompts_that_are_used_up_are_no_endless_wait(bench, start, until):
    bench.release("0")
    worker = start(itertools.islice(prompts(), 2), informative=lambda _: True)
    drain(worker, 8)
    assert "used up" in str(until(lambda: complaint(worker)))


def test_stopping_cancels_at_the_service(bench, start, until):
    bench.release("0")
    bench.lab.engine.hold()
    worker = start(prompts())
    until(lambda: bench.lab.engine.in_flight == 8)
    worker.stop()
    until(lambda: bench.lab.engine.in_flight == 0)
    assert not any(thread.name == "prorl rollouts" for thread in threading.enumerate())
    with pytest.raises(RuntimeError, match="stopped"):
        worker.check_health(60.0)
    worker.stop()


def test_stopping_at_once(bench, start):
    start(prompts()).stop()


@pytest.mark.parametrize("staleness", [0, 2])
def test_async_grpo_learns(
    bench, model_folder, tmp_path, monkeypatch, without_gpu, direct_weights, assert_exact, watch, staleness
):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    args = AsyncGRPOConfig(
        output_dir=str(tmp_path),
        use_cpu=True,
        bf16=False,
        dtype="float32",
        per_device_train_batch_size=16,
        token_budget=0,  # samples are counted, not tokens: a step is 16 of them
        num_generations=4,
        max_steps=12,
        learning_rate=5e-3,
        max_staleness=staleness,
        weight_sync_steps=1,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
    )
    worker = RolloutServiceWorker(
        bench.url, prompts(turns=2), samples=4, in_flight=16, max_staleness=staleness, buffer=16, scale="none"
    )
    seen, weights = watch(worker), direct_weights
    trainer = AsyncGRPOTrainer(
        model=str(model_folder),
        args=args,
        train_dataset=Dataset.from_list([{"prompt": "not used"}]),
        rollout_worker=worker,
        weight_transfer=weights,
    )
    trainer.train()
    history = [entry for entry in trainer.state.log_history if "ratio" in entry]
    assert len(history) == 12
    assert abs(history[0]["ratio"] - 1) < 1e-4, "the first step is on policy; later ones TRL has fetched one step ahead"
    assert abs(history[0]["kl"]) < 1e-6
    assert max(entry["sample/staleness_max"] for entry in history) <= staleness
    # Not each version has samples: a full buffer of the first may last until the third.
    assert min(row.model_version for row in seen) == 1 < max(row.model_version for row in seen)
    assert_exact(seen, weights.history)
    rewards = [entry["rollout/reward"] for entry in history if "rollout/reward" in entry]
    assert sum(rewards[-3:]) - sum(rewards[:3]) > 0.25, rewards
