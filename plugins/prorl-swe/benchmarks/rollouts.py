"""SWE rollouts per minute on two cores, and where their time goes, against bare runs of the same tests.

Three repositories are repaired by a scripted policy that looks, edits, tests and finishes, through the real server:
its replies cost nothing, so what is measured is everything but the model. The bare run is ``python -m pytest`` of the
same tests in the same environment, with the fix in place: no sandbox, no agent, no report. Rounds alternate, so
that a noisy machine hurts both; the ratio is what counts.

    python rollouts.py [--rounds 3] [--samples 4] [--at-once 2] [--picture rollouts.png]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the policy is theirs
from repairs import REPAIR, ROWS, by_repository

from prorl.api import SandboxSpec
from prorl.client import RolloutClient
from prorl.testing.lab import Lab
from prorl.wire import JobRequest, RolloutResult
from prorl_swe.repository.cache import RepositoryCache
from prorl_swe.rows import read_row

# As ``metrics["seconds"]`` calls them, but for the first two.
PHASES = {
    "other": "all else",
    "tools": "tools",
    "sandbox": "agent's sandbox",
    "patch": "taking the patch",
    "grader_sandbox": "grader's sandbox",
    "apply": "base, patch, tests put together",
    "tests": "tests",
    "control": "skips again, without the patch",
}


class Bare:
    """A repository outside of any sandbox, repaired, with its hidden tests."""

    def __init__(self, name: str, folder: Path, cache: Path, patch: str) -> None:
        self.tests = [test for field in ("FAIL_TO_PASS", "PASS_TO_PASS") for test in json.loads(ROWS[name][field])]
        self.folder = folder / name
        prepared = asyncio.run(_prepare(name, cache))
        shown = {bind.target: bind.source for bind in prepared.spec.binds}
        subprocess.run(["cp", "-r", shown[prepared.worktree], str(self.folder)], check=True)
        for text in (patch, ROWS[name]["test_patch"]):
            subprocess.run(["git", "apply", "-"], cwd=self.folder, input=text, text=True, check=True)
        inside = Path(prepared.python)
        env = next(target for target in shown if inside.is_relative_to(target))
        self.python = str(shown[env] / inside.relative_to(env))

    def run(self) -> float:
        began = time.perf_counter()
        command = [self.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *self.tests]
        subprocess.run(command, cwd=self.folder, capture_output=True, check=False)
        return time.perf_counter() - began


async def _prepare(name: str, cache: Path) -> Any:
    repositories = RepositoryCache(cache)
    lease = await repositories.prepare(read_row(ROWS[name]), SandboxSpec())
    lease.close()
    await repositories.close()
    return lease.prepared


async def _repair(url: str, samples: int, at_once: int) -> list[RolloutResult]:
    turn = asyncio.Semaphore(at_once)
    async with RolloutClient(url) as server:

        async def one(row: dict[str, Any]) -> RolloutResult:
            async with turn:
                return await server.process(JobRequest(domain="swe", instance=row))

        return list(await asyncio.gather(*(one(row) for _ in range(samples) for row in ROWS.values())))


def repair(lab: Lab, samples: int, at_once: int) -> tuple[float, list[RolloutResult]]:
    """Seconds for so many rollouts of each repository, and their results."""
    began = time.perf_counter()
    results = asyncio.run(_repair(lab.url, samples, at_once))
    seconds = time.perf_counter() - began
    wrong = [result for result in results if result.reward != 1.0]
    if wrong:
        raise SystemExit(f"not every repair is graded as right: {wrong[0].error or wrong[0].metrics}")
    return seconds, results


def run_bare(suites: Sequence[Bare], samples: int, at_once: int) -> float:
    with ThreadPoolExecutor(at_once) as threads:
        began = time.perf_counter()
        list(threads.map(Bare.run, [suite for _ in range(samples) for suite in suites]))
        return time.perf_counter() - began


def phases(result: RolloutResult) -> dict[str, float]:
    """Where the seconds of one rollout went; waiting in queues is none of them."""
    timing, seconds = result.timing, result.metrics["seconds"]
    spent = {name: float(seconds.get(name, 0.0)) for name in PHASES}
    spent["tools"] = timing.tools_s
    total = timing.init.worked_s + timing.run.worked_s + timing.eval.worked_s
    return {**spent, "other": max(0.0, total - sum(spent.values()))}


def draw(table: dict[str, dict[str, float]], bare: dict[str, float], title: str, path: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - only for the picture

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    colours = ("#bbbbbb", "#1f4e79", "#35618f", "#6d9dc5", "#e3c99b", "#c9a66b", "#8f5b35", "#5b3a22")
    figure, axis = plt.subplots(figsize=(9, 3.2))
    for number, (name, spent) in enumerate(table.items()):
        left = 0.0
        for phase, colour in zip(PHASES, colours, strict=True):
            axis.barh(
                number, spent[phase], left=left, height=0.5, color=colour, label=PHASES[phase] if number == 0 else "_"
            )
            left += spent[phase]
        axis.barh(number + 0.38, bare[name], height=0.18, color="black", label="bare pytest" if number == 0 else "_")
    axis.set_yticks(range(len(table)), list(table))
    axis.set_xlabel("seconds of one rollout (median)")
    axis.set_title(title, fontsize=10)
    axis.legend(ncol=4, fontsize=8, loc="upper center", bbox_to_anchor=(0.45, -0.2), frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=4, help="of each repository in a round")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--picture", type=Path)
    args = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, load before {load:.1f}")
    with tempfile.TemporaryDirectory(prefix="prorl-swe-bench-") as folder:
        cache = Path(folder) / "cache"
        settings = {"swe": {"cache": str(cache)}}
        with Lab(by_repository(REPAIR.__getitem__), settings=settings, max_context=65_536) as lab:
            first, results = repair(lab, 1, 1)  # makes the repositories
            patches = {name: str(result.artifacts["patch"]) for name, result in zip(ROWS, results, strict=True)}
            suites = [Bare(name, Path(folder), cache, patch) for name, patch in patches.items()]
            alone = {name: [suite.run()] for name, suite in zip(ROWS, suites, strict=True)}
            taken: dict[str, list[float]] = {"bare": [], "rollouts": []}
            kept: dict[str, list[dict[str, float]]] = {name: [] for name in ROWS}
            for _ in range(args.rounds):
                taken["bare"].append(run_bare(suites, args.samples, args.at_once))
                seconds, results = repair(lab, args.samples, args.at_once)
                taken["rollouts"].append(seconds)
                for number, result in enumerate(results):
                    kept[list(ROWS)[number % len(ROWS)]].append(phases(result))
                for name, suite in zip(ROWS, suites, strict=True):
                    alone[name].append(suite.run())
    count = args.samples * len(ROWS)
    rate = {what: 60 * count / statistics.median(seconds) for what, seconds in taken.items()}
    ratio = statistics.median(r / b for r, b in zip(taken["rollouts"], taken["bare"], strict=True))
    print(f"the first rollout of each repository, which makes it: {first:.0f} s for {len(ROWS)}")
    print(f"rollouts: {rate['rollouts']:.1f} a minute; bare runs of their tests: {rate['bare']:.1f} a minute; ")
    print(f"a rollout takes {ratio:.1f} times what its bare tests take ({args.at_once} at once)")
    table = {name: {p: statistics.median(each[p] for each in spent) for p in PHASES} for name, spent in kept.items()}
    bare = {name: statistics.median(seconds) for name, seconds in alone.items()}
    print("| seconds |", " | ".join(PHASES.values()), "| all | bare pytest |\n|" + "---|" * (len(PHASES) + 3))
    for name, spent in table.items():
        cells = " | ".join(f"{spent[phase]:.2f}" for phase in PHASES)
        print(f"| {name} | {cells} | {sum(spent.values()):.2f} | {bare[name]:.2f} |")
    if args.picture:
        draw(table, bare, f"{rate['rollouts']:.0f} rollouts a minute, {args.at_once} at once", args.picture)


if __name__ == "__main__":
    main()
