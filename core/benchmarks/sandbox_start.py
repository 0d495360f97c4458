"""Sandbox start to first tool answer for every runtime that works here; then 200 bubblewrap sandboxes at once.

Memory is the proportional set size (PSS) of every process below this one, from /proc/PID/smaps_rollup: shared pages are
counted once, so the sum is what the sandboxes really take. Afterwards the processes that are left are counted.

    python sandbox_start.py [--rounds 20] [--sandboxes 200] [--at-once 8]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Iterable, Mapping
from pathlib import Path

import psutil
import uvloop
from figures import figure, machine, percentile, show_rows, skipped

from prorl.api import Sandbox, SandboxSpec, ToolContext
from prorl.plugins import discover
from prorl.sandbox.manager import SandboxManager
from prorl.tools.execute import ExecuteBash

MIB = 1 << 20


async def answer(sandbox: Sandbox) -> None:
    seen = await ExecuteBash().call({"command": "true"}, ToolContext(sandbox=sandbox, timeout=60))
    assert not seen.is_error, seen.text


async def starts(manager: SandboxManager, runtime: str, count: int) -> Mapping[str, list[float]]:
    taken: dict[str, list[float]] = {"start": [], "start to first answer": [], "stop": []}
    for number in range(count + 1):
        began = time.perf_counter()
        sandbox = await manager.start(SandboxSpec(), runtime)
        started = time.perf_counter()
        await answer(sandbox)
        answered = time.perf_counter()
        await sandbox.stop()
        if number:  # the first one reads everything from disk
            taken["start"].append(started - began)
            taken["start to first answer"].append(answered - began)
            taken["stop"].append(time.perf_counter() - answered)
    return taken


async def each_runtime(manager: SandboxManager, count: int) -> None:
    rows = [("", "start p50 ms", "p95", "to first answer p50 ms", "p95", "stop p50 ms", "p95")]
    for probe in await manager.probes():
        if not probe.works:
            skipped(probe.runtime, probe.reason or "it does not work here")
            continue
        taken = await starts(manager, probe.runtime, count)
        cells = [figure(percentile(values, share) * 1000) for values in taken.values() for share in (0.5, 0.95)]
        rows.append((probe.runtime, *cells))
    show_rows(f"Start, first answer, stop ({count} each, one after the other)", rows)


async def many(manager: SandboxManager, count: int, at_once: int) -> None:
    await (await manager.start(SandboxSpec(), "bubblewrap")).stop()
    me = psutil.Process()
    others = set(me.children(recursive=True))
    before = pss([psutil.Process()])
    places = asyncio.Semaphore(at_once)
    taken: list[float] = []

    async def one() -> Sandbox:
        async with places:
            began = time.perf_counter()
            sandbox = await manager.start(SandboxSpec(), "bubblewrap")
            await answer(sandbox)
            taken.append(time.perf_counter() - began)
            return sandbox

    began = time.perf_counter()
    alive = await asyncio.gather(*(one() for _ in range(count)))
    seconds = time.perf_counter() - began
    inside = set(me.children(recursive=True)) - others
    memory = pss(inside)
    ours = pss([psutil.Process()]) - before
    began = time.perf_counter()
    await gathered(sandbox.stop(grace=0) for sandbox in alive)
    stopped = time.perf_counter() - began
    left = [process for process in inside if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    left += [process for process in me.children(recursive=True) if process not in others]
    rows = [("", ""), ("started and answered", f"{seconds:.1f} s, {count / seconds:.0f}/s, {at_once} at a time")]
    rows.append(("each", f"p50 {percentile(taken, 0.5) * 1000:.0f} ms, p95 {percentile(taken, 0.95) * 1000:.0f} ms"))
    rows.append(("processes", str(len(inside))))
    rows.append(("memory (PSS)", f"{memory / MIB:.0f} MiB, {memory / MIB / count:.1f} MiB each"))
    rows.append(("memory of the host's own process", f"{ours / MIB:.1f} MiB more, {ours / 1024 / count:.0f} KiB each"))
    rows.append(("all stopped in", f"{stopped:.2f} s"))
    rows.append(("processes left", str(len(left))))
    show_rows(f"{count} bubblewrap sandboxes at once", rows)
    assert not left, left


async def gathered(stopping: Iterable[Awaitable[None]]) -> None:
    await asyncio.gather(*stopping)


def pss(processes: Iterable[psutil.Process]) -> int:
    """Bytes."""
    total = 0
    for process in processes:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return total


async def main(rounds: int, sandboxes: int, at_once: int) -> None:
    print(f"sandbox start: {machine()}")
    manager = SandboxManager(discover().runtimes)
    try:
        await each_runtime(manager, rounds)
        await many(manager, sandboxes, at_once)
    finally:
        await manager.close()
    print(f"\n{machine()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sandboxes", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=8)
    asked = parser.parse_args()
    uvloop.run(main(asked.rounds, asked.sandboxes, asked.at_once))
