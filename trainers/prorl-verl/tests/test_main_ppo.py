"""``python -m verl.trainer.main_ppo`` itself, by ``examples/learn_lookup.py``: verl's GRPO, the real server, real
sandboxes, real gradient steps, and new weights in the engine before every step.

Minutes long, so marked slow (``tox run -e verl-slow``). ``PRORL_LOOKUP_CACHE`` may name a folder where the warm-started
model is kept.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

RECORDING = Path(__file__).parent / "cpu" / "recording.py"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
prorl_lookup = pytest.importorskip("prorl_lookup.train", reason="the task is core/examples/rl: pip install it")
warmstart = pytest.importorskip("prorl_lookup.warmstart")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(os.environ.get("PRORL_LOOKUP_CACHE") or tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def example() -> Any:
    path = Path(__file__).parents[1] / "examples" / "learn_lookup.py"
    spec = importlib.util.spec_from_file_location("learn_lookup", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_verl_learns(example, cache):
    """``train`` itself holds every step to the engine's log-probabilities, and every token to the step's version."""
    record = example.train(seed=0, steps=16, cache=cache)
    print([round(entry["reward"], 2) for entry in record["steps"]], record["wall_s"])
    assert len(record["steps"]) == 16
    assert max(entry["gap"] for entry in record["steps"]) < 1e-4
    assert prorl_lookup.rise(record, 5) > 0.15, record
    assert record["left_registered"] == [], "the worker's gateway has said good-bye"


def test_every_token_is_of_the_weights_it_names(example, cache, tmp_path, monkeypatch):
    """verl's colocated asynchronous trainer with our buffer and DAPO's filter: what a step leaves unfinished, replies
    in their midst among it, is used by the next one. verl keeps the weights of every version; each token's
    log-probability is computed again, from the weights it names, and from those that were trained on it: what verl saw
    the two differ by is what the update changed, and nothing else."""
    monkeypatch.setenv("HF_ENGINE_TOKEN_S", "0.05")
    steps, rows, kept = 6, tmp_path / "rows.jsonl", tmp_path / "kept"
    more = [
        "trainer.v1.trainer_mode=colocate_async",
        f"trainer.v1.sampler.custom_sampler.path={RECORDING}",
        f"+trainer.v1.sampler.sampler_kwargs.record={rows}",
        "trainer.save_freq=1",
        f"trainer.default_local_dir={kept}",
        "actor_rollout_ref.actor.checkpoint.save_contents=[hf_model]",
    ]
    record = example.train(seed=0, steps=steps, cache=cache, stop_early=True, more=more)
    folders = [
        warmstart.warm_model(cache),
        *(kept / f"global_step_{step}" / "actor" / "huggingface" for step in range(1, steps)),
    ]
    weights = [AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for folder in folders]
    of_named, of_trained = [0.0] * steps, [0.0] * steps
    lags: Counter[int] = Counter()
    resumed = 0
    for row in map(json.loads, rows.read_text().splitlines()):
        now, versions = row["step"] - 1, row["versions"]
        assert [version != "" for version in versions] == [bool(bit) for bit in row["mask"]]
        named = {int(version) for version in versions if version}
        assert (row["oldest"], row["newest"]) == (min(named), max(named))
        resumed += any(here and next_ and here != next_ for here, next_ in itertools.pairwise(versions))
        scored = {version: logprobs_of(weights[version], row) for version in named | {now}}
        for place, version in enumerate(versions):
            if version:
                lags[now - int(version)] += 1
                sampled = row["logprobs"][place]
                of_named[now] = max(of_named[now], abs(scored[int(version)][place] - sampled))
                of_trained[now] = max(of_trained[now], abs(scored[now][place] - sampled))
    print(*zip(record["steps"], of_named, of_trained, strict=True), lags, resumed, record["wall_s"], sep="\n")
    assert max(of_named) < 1e-4
    seen = [min(gap, 20.0) for gap in of_trained]  # verl bounds what it logs
    assert [entry["gap"] for entry in record["steps"]] == pytest.approx(seen, rel=1e-3, abs=1e-4)
    assert max(of_trained) > 0.1, "new weights are others"
    assert 0 < max(lags) <= 8
    assert resumed > 0
    assert record["left_registered"] == []


def logprobs_of(model: Any, row: dict[str, Any]) -> list[float]:
    """Of the response's tokens."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([row["prompt"] + row["response"]])).logits[0, len(row["prompt"]) - 1 : -1]
    logprobs: list[float] = logits.log_softmax(-1).gather(-1, torch.tensor(row["response"])[:, None])[:, 0].tolist()
    return logprobs
