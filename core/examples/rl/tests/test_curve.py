"""What is drawn and what is kept of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prorl_lookup import curve
from prorl_lookup.train import rise

KEPT, MIXED = (
    json.loads((Path(__file__).parents[1] / name).read_text()) for name in ("curve.json", "curve-mixed.json")
)


def record(rewards):
    steps = [{"reward": reward, "gap": 1e-6 * step} for step, reward in enumerate(rewards)]
    return {"seed": 3, "prompts": 10, "samples": 8, "lr": 5e-4, "versions": {}, "wall_s": 1.0, "steps": steps}


def test_summary_and_smoothing():
    rewards = [0.2] * 10 + [0.5] * 20 + [0.9] * 10
    summary = curve.summary_of(record(rewards))
    assert (summary["first_ten"], summary["last_ten"], summary["rise"]) == (0.2, 0.9, 0.7)
    assert summary["rise"] == pytest.approx(rise(record(rewards)))
    assert summary["largest_gap"] == 3.9e-5
    assert curve.smoothed([0.0, 1.0, 0.5]) == [0.0, 0.5, 0.5]


def test_several_tasks_have_a_line_each():
    mixed = record([0.5] * 20)
    for step, entry in enumerate(mixed["steps"]):
        entry["by_task"] = {"code": 0.5 + 0.02 * step, "math": 0.5 - 0.02 * step}
    summary = curve.summary_of(mixed)
    assert {name: task["rise"] for name, task in summary["tasks"].items()} == {"code": 0.2, "math": -0.2}
    lines = curve.lines_of([summary, summary])
    assert list(lines) == ["code: 0.59 to 0.79", "math: 0.41 to 0.21"]
    assert [len(runs) for runs in lines.values()] == [2, 2]
    assert list(curve.lines_of([curve.summary_of(record([0.2] * 20))])) == ["seed 3: 0.20 to 0.20"]


def test_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    out = tmp_path / "curve.png"
    curve.draw({"one": [[0.1, 0.2]], "two": [[0.3, 0.4], [0.5, 0.6]]}, "title", out)
    assert out.read_bytes().startswith(b"\x89PNG")


def test_the_page_says_what_was_run():
    page = (Path(__file__).parents[1] / "README.md").read_text()
    assert [run["seed"] for run in KEPT] == [0, 1, 2]
    for run in KEPT:
        assert run["rise"] >= 0.3
        gap = f"{run['largest_gap']:.1e}".replace("e-0", "e-")
        cells = [f"{run[name]:.2f}" for name in ("first_ten", "last_ten", "rise")]
        assert f"| {run['seed']} | {' | '.join(cells)} | {gap} | {run['wall_s']:.0f} |" in page


def test_the_page_says_what_was_run_with_several_tasks():
    page = (Path(__file__).parents[1] / "README.md").read_text()
    for run in MIXED:
        cells = [
            f"{task['first_ten']:.2f} to {task['last_ten']:.2f}: +{task['rise']:.2f}"
            for _, task in sorted(run["tasks"].items())
        ]
        assert all(task["rise"] > 0.25 for task in run["tasks"].values())
        gap = f"{run['largest_gap']:.1e}".replace("e-0", "e-")
        assert f"| {run['seed']} | {' | '.join(cells)} | {gap} | {run['wall_s']:.0f} |" in page
