"""Sandbox start to first tool answer for every runtime that works here; then 200 bubblewrap sandboxes at once.

The baseline of the starts is bwrap with a Python in it that does nothing.

Memory is the proportional set size (PSS) of every process below this one, from /proc/PID/smaps_rollup: shared pages are
counted once, so the sum is what the sandboxes really take. Afterwards the processes that are left are counted.

    python sandbox_start.py [--rounds 20] [--sandboxes 200] [--at-once 8]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Iterable
from pathlib import Path

import psutil
import uvloop
from figures import figure, machine, percentile, show_rows, skipped

from prorl.api import Sandbox, SandboxSpec, ToolContext
from prorl.plugins import discover
from prorl.sandbox import host
from prorl.sandbox.manager import SandboxManager
from prorl.tools.execute import ExecuteBash

MIB = 1 << 20


async def answer(sandbox: Sandbox) -> None:
    seen = await ExecuteBash().call({"command": "true"}, ToolContext(sandbox=sandbox, timeout=60))
    assert not seen.is_error, seen.text


class Taken:
    """Seconds, by what was waited for."""

    def __init__(self) -> None:
        self.start: list[float] = []
        self.answer: list[float] = []
        self.stop: list[float] = []

    def row(self, name: str, base: float) -> tuple[str, ...]:
        both = [
            figure(percentile(values, share) * 1000) for values in (self.answer, self.stop) for share in (0.5, 0.95)
        ]
        return (name, figure(percentile(self.start, 0.5) * 1000), *both, f"{percentile(self.answer, 0.5) / base:.1f}x")


async def start_once(manager: SandboxManager, runtime: str, taken: Taken) -> None:
    began = time.perf_counter()
    sandbox = await manager.start(SandboxSpec(), runtime)
    started = time.perf_counter()
    await answer(sandbox)
    answered = time.perf_counter()
    await sandbox.stop()
    taken.start.append(started - began)
    taken.answer.append(answered - began)
    taken.stop.append(time.perf_counter() - answered)


async def bare_once(bwrap: str) -> float:
    """A namespace, and a Python in it that does nothing: less cannot be had."""
    began = time.perf_counter()
    argv = [bwrap, "--unshare-all", "--ro-bind", "/", "/", "--", sys.executable, "-I", "-S", "-c", "pass"]
    await (await asyncio.create_subprocess_exec(*argv)).wait()
    return time.perf_counter() - began


async def each_runtime(manager: SandboxManager, count: int) -> None:
    working: dict[str, Taken] = {}
    for probe in await manager.probes():
        if probe.works:
            working[probe.runtime] = Taken()
        else:
            skipped(probe.runtime, probe.reason or "it does not work here")
    bwrap = host.find_bwrap(None)
    bare: list[float] = []
    for _ in range(count):
        for runtime, taken in working.items():
            await start_once(manager, runtime, taken)
        if bwrap:
            bare.append(await bare_once(bwrap))
    base = percentile(bare, 0.5) if bare else percentile(working["local"].answer, 0.5)
    head = ("", "start p50 ms", "to first answer p50 ms", "p95", "stop p50 ms", "p95", "against bwrap and python")
    rows: list[tuple[str, ...]] = [head, *(taken.row(name, base) for name, taken in working.items())]
    if bare:
        alone = (figure(percentile(bare, 0.5) * 1000), figure(percentile(bare, 0.95) * 1000))
        rows.append(("bwrap and python, nothing else", "", *alone, "", "", "1.0x"))
    show_rows(f"Start, first answer, stop ({count} each, in turn)", rows)


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
