"""Test cases judged per second on two cores, against bare subprocess runs of the same programs.

The bare run is ``subprocess.run([python, solution.py], input=...)`` on two threads: no sandbox, no limits, no
comparison. The judge runs two candidates at once, as the server does. ``fresh`` is the judge with a sandbox for every
test, which is what a program gets that leaves something behind in each. Rounds alternate, so that a noisy machine hurts
all; the ratio is what counts.

    python judging.py [--rounds 5] [--candidates 6] [--tests 20]
"""

from __future__ import annotations

import argparse
import asyncio
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

import msgspec

from prorl.api import SandboxSpec
from prorl.api.sandbox import Bind
from prorl.grading import GraderPool
from prorl.plugins import discover
from prorl.sandbox.manager import SandboxManager
from prorl_code.handler import COMPARER
from prorl_code.judge.judge import Judge
from prorl_code.judge.program import RunLimits
from prorl_code.rows import Problem, Test
from prorl_code.settings import CodeSettings

AT_ONCE = 2
SUM = "print(sum(map(int, input().split())))\n"
SIEVE = """
n = int(input().split()[0]) + 200_000
prime = bytearray([1]) * n
for k in range(2, int(n**0.5) + 1):
    if prime[k]:
        prime[k * k :: k] = bytes(len(range(k * k, n, k)))
total = 0
for k in range(2, n):
    total += prime[k]
print(total)
"""
PROGRAMS = {"sum (starts and ends)": SUM, "sieve (works a little)": SIEVE}


class Court:
    def __init__(self, sandboxes: SandboxManager, comparers: GraderPool) -> None:
        self._sandboxes = sandboxes
        self._comparers = comparers

    async def _open(self, limits: RunLimits, binds: Sequence[Bind]) -> Any:
        return await self._sandboxes.start(msgspec.structs.replace(limits.sandbox(SandboxSpec()), binds=tuple(binds)))

    async def judge(self, source: str, candidates: Sequence[tuple[Test, ...]]) -> float:
        """Seconds for all of them, ``AT_ONCE`` at a time."""
        turn = asyncio.Semaphore(AT_ONCE)

        async def one(tests: tuple[Test, ...]) -> None:
            async with turn:
                judge = Judge(Problem(messages=(), tests=tests), CodeSettings(), self._open, self._comparers)
                judged = await judge.judge(source)
                if judged.passed != len(tests):
                    raise SystemExit(f"the judge is wrong: {judged.reason}")

        began = time.perf_counter()
        await asyncio.gather(*(one(tests) for tests in candidates))
        return time.perf_counter() - began


def bare(source: str, tests: Sequence[Test]) -> float:
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE) as threads:
        program = Path(folder) / "solution.py"
        program.write_text(source)

        def one(test: Test) -> None:
            command = [sys.executable, "-B", "-s", str(program)]
            done = subprocess.run(command, input=test.given, capture_output=True, text=True, check=True)
            if done.stdout.split() != test.expected.split():
                raise SystemExit(f"the program is wrong: {done.stdout}")

        began = time.perf_counter()
        list(threads.map(one, tests))
        return time.perf_counter() - began


def expected(source: str, given: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", source], input=given, capture_output=True, text=True, check=True
    ).stdout


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--candidates", type=int, default=6)
    parser.add_argument("--tests", type=int, default=20)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, load before {load:.2f}")
    sandboxes = SandboxManager(discover().runtimes)
    async with GraderPool(COMPARER, size=1) as comparers:
        court = Court(sandboxes, comparers)
        for name, source in PROGRAMS.items():
            given = [f"{n} {n}\n" for n in range(arguments.tests)]
            tests = tuple(Test(given=text, expected=expected(source, text)) for text in given)
            candidates = [tests] * arguments.candidates
            alone = [(test,) for test in tests] * arguments.candidates
            await court.judge(source, [tests])  # warm
            seconds: dict[str, list[float]] = {"bare": [], "judge": [], "fresh": []}
            for _ in range(arguments.rounds):
                seconds["bare"].append(await asyncio.to_thread(bare, source, tests * arguments.candidates))
                seconds["judge"].append(await court.judge(source, candidates))
                seconds["fresh"].append(await court.judge(source, alone))
            count = len(alone)
            print(f"{name}: {arguments.candidates} candidates with {arguments.tests} tests each")
            for what, times in seconds.items():
                ratio = statistics.median(b / t for b, t in zip(seconds["bare"], times, strict=True))
                rate = count / statistics.median(times)
                print(f"  {what:6} {rate:7.1f} tests/s, {ratio:5.2f} of bare")
    await sandboxes.close()


if __name__ == "__main__":
    asyncio.run(main())
