"""``python -m prorl_lookup.curve RUN.json ... --out curve.png --summary curve.json``: what runs learnt, as a picture.

Every run is drawn as it was, faintly, and smoothed over ten steps; runs of several tasks with a line for each of them,
smoothed over their seeds as well.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

WINDOW = 10


def smoothed(rewards: list[float]) -> list[float]:
    """The mean of each step and the nine before it, as far as there are that many."""
    spans = [rewards[max(0, end - WINDOW) : end] for end in range(1, len(rewards) + 1)]
    return [sum(span) / len(span) for span in spans]


def summary_of(record: dict[str, Any]) -> dict[str, Any]:
    """What of a run's record goes into the repository."""
    steps = record["steps"]
    summary = {
        **{name: record[name] for name in ("seed", "prompts", "samples", "lr", "versions", "wall_s")},
        "largest_gap": float(f"{max(entry['gap'] for entry in steps):.2g}"),
        **_rise([entry["reward"] for entry in steps]),
    }
    tasks = steps[0].get("by_task", {})
    if len(tasks) > 1:
        summary["tasks"] = {task: _rise([entry["by_task"][task] for entry in steps]) for task in tasks}
    return summary


def _rise(rewards: list[float]) -> dict[str, Any]:
    first, last = (sum(part) / len(part) for part in (rewards[:WINDOW], rewards[-WINDOW:]))
    return {
        "first_ten": round(first, 3),
        "last_ten": round(last, 3),
        "rise": round(last - first, 3),
        "rewards": [round(reward, 4) for reward in rewards],
    }


def lines_of(summaries: list[dict[str, Any]]) -> dict[str, list[list[float]]]:
    """What is drawn: label to runs. A line for each seed, or for each task where runs have several."""
    tasks = summaries[0].get("tasks", {})
    if not tasks:
        return {
            f"seed {one['seed']}: {one['first_ten']:.2f} to {one['last_ten']:.2f}": [one["rewards"]]
            for one in summaries
        }
    lines = {}
    for task in tasks:
        runs = [one["tasks"][task] for one in summaries]
        first, last = (sum(run[part] for run in runs) / len(runs) for part in ("first_ten", "last_ten"))
        lines[f"{task}: {first:.2f} to {last:.2f}"] = [run["rewards"] for run in runs]
    return lines


def draw(lines: dict[str, list[list[float]]], title: str, out: Path) -> None:
    """``lines``: for each label runs of the same length."""
    import matplotlib as mpl  # noqa: PLC0415 - only this needs it

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    for number, (label, runs) in enumerate(lines.items()):
        for rewards in runs:
            axes.plot(rewards, color=f"C{number}", alpha=0.25, linewidth=1)
        mean = [sum(step) / len(step) for step in zip(*runs, strict=True)]
        axes.plot(smoothed(mean), color=f"C{number}", linewidth=2, label=label)
    axes.set(xlabel="gradient step", ylabel="mean reward", ylim=(0, 1.02), xlim=(0, None), title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(out, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", type=Path, help="of prorl_lookup.train")
    parser.add_argument("--title", default="Half a million parameters, two CPU cores, real tools")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--summary", type=Path)
    given = parser.parse_args()
    summaries = [summary_of(json.loads(path.read_text())) for path in given.records]
    draw(lines_of(summaries), given.title, given.out)
    if given.summary is not None:
        given.summary.write_text(json.dumps(summaries, indent=1) + "\n")


if __name__ == "__main__":
    main()
