"""What the sandbox benchmarks share: rounds that alternate, percentiles, a table, and what machine it was.

A contender is an async callable without arguments. Rounds alternate between contenders, so that whatever else the
machine does hurts all of them; only ratios within one run mean anything.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

Contender = Callable[[], Awaitable[object]]


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


async def alternate(contenders: Mapping[str, tuple[Contender, int]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every call, by name. ``(contender, calls)``: so many calls a round, after one that does not count."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for contender, _ in contenders.values():
        await contender()
    for _ in range(rounds):
        for name, (contender, calls) in contenders.items():
            for _ in range(calls):
                began = time.perf_counter()
                await contender()
                taken[name].append(time.perf_counter() - began)
    return taken


def show(title: str, taken: Mapping[str, Sequence[float]], baseline: str) -> None:
    """A Markdown table in milliseconds; the last column is the median as a multiple of the baseline's."""
    rows = [("", "p50 ms", "p95 ms", "calls", f"against {baseline}")]
    base = percentile(taken[baseline], 0.5)
    for name, values in taken.items():
        p50, p95 = percentile(values, 0.5), percentile(values, 0.95)
        rows.append((name, figure(p50 * 1000), figure(p95 * 1000), str(len(values)), f"{figure(p50 / base)}x"))
    show_rows(title, rows)


def show_rows(title: str, rows: Sequence[Sequence[str]]) -> None:
    """A Markdown table; the first row is its head."""
    print(f"\n### {title}\n")
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for number, row in enumerate(rows):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")


def figure(value: float) -> str:
    """Two significant digits at least, and no more than tell something."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def skipped(what: str, why: str) -> None:
    print(f"\nSKIPPED {what}: {why}", flush=True)


def machine() -> str:
    """Cores, memory, system, and what else was going on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = Path("/proc/loadavg").read_text(encoding="ascii").split()[0]
    user = "root" if os.geteuid() == 0 else "an ordinary user"
    return (
        f"{os.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release()}, Python {platform.python_version()}, "
        f"as {user}, load average {load}"
    )
