"""Figure 3 of the ProRL Agent paper: asynchronous DAPO against batch-by-batch, on the same long-tailed rollouts.

Batch-by-batch starts K prompts at once, waits for the last of their rollouts, drops the groups that teach nothing, and
starts over until K are left (what is over K is dropped). The asynchronous collector refills every free slot and stops
with the K-th informative group. Both get the same prompts with the same durations and rewards, first on a clock that
jumps, then (``--real``) as sleeping rollouts on the real server.

    python dapo.py [--steps 20] [--slots 64] [--wanted 16] [--samples 8] [--real] [--picture dapo.png]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prorl.api import AgentHandler, HandlerRecord, Job
from prorl.client import CollectorSettings, GroupCollector, Prompt, RolloutClient
from prorl.plugins.registry import Registry
from prorl.server.serve import RunningServer
from prorl.server.settings import parse_settings
from prorl.testing.virtualtime import virtual_run
from prorl.wire import CancelReply, JobRequest, RolloutResult

SEED = 7


def fate(prompt: int, sample: int) -> tuple[float, float]:
    """Seconds and reward of a rollout, the same whoever asks: log-normal with a tail to ten minutes; half of all
    prompts are too easy or too hard to teach anything."""
    rng = random.Random(SEED * 1_000_003 + prompt * 1009 + sample)
    chance = random.Random(SEED + prompt * 31).betavariate(0.25, 0.25)
    return min(600.0, rng.lognormvariate(3.0, 1.1)), float(rng.random() < chance)


@dataclass
class Spans:
    """When each rollout ran, and whether it was cancelled; the slot it ran in is found when it is drawn."""

    clock: Callable[[], float]
    spans: list[tuple[float, float, bool]] = field(default_factory=list)

    async def timed(self, work: Any) -> Any:
        began = self.clock()
        cancelled = True
        try:
            result = await work
            cancelled = result.status == "cancelled"
            return result
        finally:
            self.spans.append((began, self.clock(), cancelled))

    def idle(self, slots: int) -> float:
        """Share of the slots' time in which nothing ran."""
        end = max(span[1] for span in self.spans)
        return max(0.0, 1.0 - sum(b - a for a, b, _ in self.spans) / (slots * end))


class Simulated:
    """The server's two calls, on whatever clock the loop has."""

    def __init__(self) -> None:
        self._stops: dict[str, asyncio.Event] = {}

    async def process(self, request: JobRequest) -> RolloutResult:
        assert request.job_id is not None
        seconds, reward = fate(request.instance["prompt"], request.instance["sample"](request.job_id))
        stop = self._stops[request.job_id] = asyncio.Event()
        try:
            async with asyncio.timeout(seconds):
                await stop.wait()
        except TimeoutError:
            return _result(request.job_id, reward)
        finally:
            del self._stops[request.job_id]
        return _result(request.job_id, 0.0, cancelled=True)

    async def cancel(self, *, job_ids: tuple[str, ...]) -> CancelReply:
        known = [job_id for job_id in job_ids if job_id in self._stops]
        for job_id in known:
            self._stops[job_id].set()
        return CancelReply(cancelled=known, unknown=[job_id for job_id in job_ids if job_id not in known])


class Sleeper(AgentHandler):
    """A rollout on the real server: sleeps for its duration, scaled down, and gets its reward."""

    scale = 1.0 / 200

    async def init(self, job: Job) -> Any:
        return None, {}, {}

    async def run(self, job: Job) -> dict[str, Any]:
        seconds, reward = fate(job.instance["prompt"], sample_in(job.id))
        await asyncio.sleep(seconds * self.scale)
        return {"reward": reward}

    async def eval(self, job: Job) -> dict[str, Any]:
        return {"reward": job.run_output["reward"]}


class Timed:
    """Any service, with its rollouts' spans kept."""

    def __init__(self, service: Any, spans: Spans) -> None:
        self._service, self._spans = service, spans

    async def process(self, request: JobRequest) -> RolloutResult:
        result: RolloutResult = await self._spans.timed(self._service.process(request))
        return result

    async def cancel(self, *, job_ids: tuple[str, ...]) -> CancelReply:
        reply: CancelReply = await self._service.cancel(job_ids=job_ids)
        return reply


def sample_in(job_id: str) -> int:
    return int(job_id.rpartition("-")[2].partition(".")[0])


def _result(job_id: str, reward: float, *, cancelled: bool = False) -> RolloutResult:
    status = "cancelled" if cancelled else "completed"
    return RolloutResult(
        job_id=job_id, status=status, stage="eval", handler="sleep", reward=reward, mask_sample=cancelled
    )


@dataclass
class Outcome:
    name: str
    spans: Spans
    seconds: float
    groups: int

    def row(self, slots: int) -> list[str]:
        idle, spent = self.spans.idle(slots), len(self.spans.spans)
        rate = self.groups / self.seconds
        return [
            self.name,
            f"{idle:.1%}",
            str(spent),
            f"{spent / self.groups:.1f}",
            f"{self.seconds:.0f}",
            f"{rate * 60:.2f}",
        ]


def prompts(make: Callable[[int], JobRequest]) -> Iterator[Prompt]:
    for n in range(10**9):
        yield Prompt(prompt_id=f"p{n}", request=make(n))


async def batch_by_batch(service: Timed, args: argparse.Namespace, make: Callable[[int], JobRequest]) -> int:
    slots, numbers, groups = asyncio.Semaphore(args.slots), iter(range(10**9)), 0

    async def one(n: int, sample: int) -> float:
        async with slots:
            request = make(n)
            job_id = f"b{n}-{sample}.0"
            return (await service.process(_with_id(request, job_id))).reward

    for _ in range(args.steps):
        kept = 0
        while kept < args.wanted:
            chosen = [next(numbers) for _ in range(args.wanted)]
            rewards = await asyncio.gather(*(asyncio.gather(*(one(n, s) for s in range(args.samples))) for n in chosen))
            kept += sum(len(set(group)) > 1 for group in rewards)
        groups += args.wanted
    return groups


async def asynchronous(service: Timed, args: argparse.Namespace, make: Callable[[int], JobRequest]) -> int:
    settings = CollectorSettings(
        samples=args.samples, wanted=args.wanted, in_flight=args.slots, carry=args.carry, max_lag=2
    )
    groups = 0
    async with GroupCollector(service, prompts(make), settings, run_id="f3") as collector:
        for step in range(args.steps):
            groups += len((await collector.collect(step)).groups)
    return groups


def _with_id(request: JobRequest, job_id: str) -> JobRequest:
    return JobRequest(instance=request.instance, domain=request.domain, job_id=job_id)


def simulate(name: str, way: Any, args: argparse.Namespace) -> Outcome:
    async def main() -> Outcome:
        loop = asyncio.get_running_loop()
        spans = Spans(loop.time)
        make = lambda n: JobRequest(instance={"prompt": n, "sample": sample_in})  # noqa: E731
        groups = await way(Timed(Simulated(), spans), args, make)
        return Outcome(name, spans, loop.time(), groups)

    return virtual_run(main())


def on_the_server(name: str, way: Any, args: argparse.Namespace) -> Outcome:
    registry = Registry(handlers={"sleep": HandlerRecord(name="sleep", factory=Sleeper, summary="sleeps")})
    document = {"server": {"port": 0}, "pipeline": {"run_workers": args.slots, "init_workers": args.slots}}

    async def main(url: str) -> Outcome:
        began = time.monotonic()
        spans = Spans(lambda: (time.monotonic() - began) / Sleeper.scale)
        make = lambda n: JobRequest(instance={"prompt": n}, domain="sleep")  # noqa: E731
        async with RolloutClient(url, concurrency=1024) as client:
            groups = await way(Timed(client, spans), args, make)
        return Outcome(name, spans, spans.clock(), groups)

    with RunningServer(parse_settings(document), registry) as server:
        return asyncio.run(main(server.url))


def draw(outcomes: list[Outcome], slots: int, path: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - only for the picture

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    window = min(outcome.seconds for outcome in outcomes) / 2
    figure, axes = plt.subplots(len(outcomes), 1, figsize=(10, 2.6 * len(outcomes)), sharex=True, squeeze=False)
    for axis, outcome in zip(axes[:, 0], outcomes, strict=True):
        ends = [0.0] * slots
        for began, ended, cancelled in sorted(outcome.spans.spans):
            free = [slot for slot in range(slots) if ends[slot] <= began + 1e-6]
            slot = max(free, key=ends.__getitem__) if free else min(range(slots), key=ends.__getitem__)
            ends[slot] = ended
            if began < window:
                colour = "#c9a66b" if cancelled else "#35618f"
                axis.barh(slot, ended - began, left=began, height=1.0, color=colour, linewidth=0)
        axis.set_xlim(0, window)
        axis.set_ylim(-0.5, slots - 0.5)
        axis.set_ylabel("rollout slot")
        axis.set_title(f"{outcome.name}: {outcome.spans.idle(slots):.1%} idle, {outcome.groups} groups", fontsize=10)
    axes[-1, 0].set_xlabel("seconds (blue: rollouts, sand: cancelled, white: idle)")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--wanted", type=int, default=16, help="informative groups per step (K)")
    parser.add_argument("--samples", type=int, default=8, help="rollouts per prompt (n)")
    parser.add_argument("--real", action="store_true", help="also on the real server, 200 times faster than told")
    parser.add_argument("--picture", type=Path, help="draw the first half as a timeline")
    args = parser.parse_args()
    outcomes: list[Outcome] = []
    print("| | idle | rollouts | per group | seconds | informative groups a minute |\n|---|---|---|---|---|---|")
    for clock, run in (("", simulate), *((("real server, ", on_the_server),) if args.real else ())):
        for name, way, carry in (
            ("batch by batch", batch_by_batch, False),
            ("asynchronous", asynchronous, False),
            ("asynchronous, carried over", asynchronous, True),
        ):
            args.carry = carry
            outcome = run(clock + name, way, args)
            outcomes.append(outcome)
            print("| " + " | ".join(outcome.row(args.slots)) + " |")
            sys.stdout.flush()
    base, best = outcomes[0], outcomes[1]
    ratio = (best.groups / best.seconds) / (base.groups / base.seconds)
    print(f"\nInformative groups a second, asynchronous against batch by batch: {ratio:.2f} times")
    if args.picture:
        draw(outcomes[:3], args.slots, args.picture)


if __name__ == "__main__":
    main()
