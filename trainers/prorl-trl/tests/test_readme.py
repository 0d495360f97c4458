"""The configurations of the README run as they stand there, but for names of machines and models."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parents[1]
README = (HERE / "README.md").read_text()


def block(title: str, **changes: str) -> str:
    (code,) = re.findall(rf'^```python title="{title}"\n(.*?)^```$', README, re.MULTILINE | re.DOTALL)
    for old, new in changes.values():
        assert old in code, old
        code = code.replace(old, new)
    return code


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    rows = [{"problem": f"problem {index}", "name": f"row-{index}"} for index in range(16)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_grpo(bench, model_folder, in_folder):
    names: dict[str, Any] = {"PUBLISH": bench.publish}
    code = block(
        "train.py",
        server=("http://127.0.0.1:8089", bench.url),
        domain=('domain="math"', 'domain="letters"'),
        publish=("FolderPublisher(FolderReload([ENGINE], [SERVER]), SHARED)", "PUBLISH"),
        model=('model="Qwen/Qwen3-4B"', f'model="{model_folder}"'),
        args=("beta=0.0,", "beta=0.0, use_cpu=True, bf16=False, max_steps=2, report_to=[], logging_steps=1,"),
    )
    exec(compile(code, "train.py", "exec"), names)
    assert names["trainer"].state.global_step == 2
    assert bench.lab.engine.weight_version == "step-1"


def test_async_grpo(bench, model_folder, in_folder, without_gpu, direct_weights):
    names: dict[str, Any] = {"WEIGHTS": direct_weights}
    code = block(
        "train_async.py",
        server=("http://127.0.0.1:8089", bench.url),
        domain=('domain="math"', 'domain="letters"'),
        model=("/models/Qwen3-4B", str(model_folder)),
        steps=("max_steps=1000", 'max_steps=2, use_cpu=True, bf16=False, dtype="float32", report_to=[]'),
        budget=("token_budget=16384", "token_budget=1024"),
        weights=("weight_transfer=FolderWeights(", "weight_transfer=(lambda *_, **__: WEIGHTS)("),
    )
    exec(compile(code, "train_async.py", "exec"), names)
    assert names["trainer"].state.global_step == 2
    assert direct_weights.version == 3


def test_the_table_is_what_was_run():
    runs = json.loads((HERE / "curve.json").read_text())
    assert [run["seed"] for run in runs] == [0, 1, 2]
    for run in runs:
        assert run["rise"] >= 0.3
        gap = f"{run['largest_gap']:.1e}".replace("e-0", "e-")
        cells = [f"{run[name]:.2f}" for name in ("first_ten", "last_ten", "rise")]
        assert f"| {run['seed']} | {' | '.join(cells)} | {gap} | {run['wall_s']:.0f} |" in README
