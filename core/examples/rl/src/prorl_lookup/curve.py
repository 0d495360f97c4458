"""``python -m prorl_lookup.curve RUN.json ... --out curve.png --summary curve.json``: what runs learnt, as a picture.

Every run is drawn as it was, faintly, and smoothed over ten steps.
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
    rewards = [entry["reward"] for entry in record["steps"]]
    first, last = (sum(part) / len(part) for part in (rewards[:WINDOW], rewards[-WINDOW:]))
    return {
        **{name: record[name] for name in ("seed", "prompts", "samples", "lr", "versions", "wall_s")},
        "first_ten": round(first, 3),
        "last_ten": round(last, 3),
        "rise": round(last - first, 3),
        "largest_gap": float(f"{max(entry['gap'] for entry in record['steps']):.2g}"),
        "rewards": [round(reward, 4) for reward in rewards],
    }


def draw(runs: dict[str, list[float]], title: str, out: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - only this needs it

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    for number, (label, rewards) in enumerate(runs.items()):
        axes.plot(rewards, color=f"C{number}", alpha=0.25, linewidth=1)
        axes.plot(smoothed(rewards), color=f"C{number}", linewidth=2, label=label)
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
    runs = {f"seed {one['seed']}: {one['first_ten']:.2f} to {one['last_ten']:.2f}": one["rewards"] for one in summaries}
    draw(runs, given.title, given.out)
    if given.summary is not None:
        given.summary.write_text(json.dumps(summaries, indent=1) + "\n")


if __name__ == "__main__":
    main()
