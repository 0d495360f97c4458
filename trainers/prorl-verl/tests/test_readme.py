"""The page says what was run."""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).parents[1]
README = (HERE / "README.md").read_text()


def test_the_table_is_what_was_run():
    runs = json.loads((HERE / "curve.json").read_text())
    assert [run["seed"] for run in runs] == [0, 1, 2]
    for run in runs:
        assert run["rise"] >= 0.3
        gap = f"{run['largest_gap']:.1e}".replace("e-0", "e-")
        cells = [f"{run[name]:.2f}" for name in ("first_ten", "last_ten", "rise")]
        assert f"| {run['seed']} | {' | '.join(cells)} | {gap} | {run['wall_s']:.0f} |" in README
