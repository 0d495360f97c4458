"""``python -m verl.trainer.main_ppo`` itself, by ``examples/learn_lookup.py``: verl's GRPO, the real server, real
sandboxes, real gradient steps, and new weights in the engine before every step.

Minutes long, so marked slow (``tox run -e verl-slow``). ``PRORL_LOOKUP_CACHE`` may name a folder where the warm-started
model is kept.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
prorl_lookup = pytest.importorskip("prorl_lookup.train", reason="the task is core/examples/rl: pip install it")


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


def test_rollouts_outlive_a_step(example, cache):
    """verl's colocated asynchronous trainer with our buffer and DAPO's filter: what a step leaves unfinished is used by
    the next one, and says of which weights it is."""
    more = ["trainer.v1.trainer_mode=colocate_async"]
    record = example.train(seed=0, steps=6, cache=cache, stop_early=True, more=more)
    print(*record["steps"], record["wall_s"], sep="\n")
    assert len(record["steps"]) == 6
    assert 0 < max(entry["lag"] for entry in record["steps"]) <= 8
    for entry in record["steps"]:
        assert entry["lag"] > 0 or entry["gap"] < 1e-4, "all of the step's own weights, and yet not the trainer's"
    assert record["left_registered"] == []
