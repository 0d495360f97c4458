"""Keep a fixed number of rollouts in flight, write each result as it comes, and tidy up when interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterator
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from prorl.cli.rollout.results import Asked, ResultFile
from prorl.cli.rollout.rows import Place
from prorl.cli.rollout.summary import Summary
from prorl.client import ClientError, RolloutClient, ServiceError
from prorl.wire import JobRequest

_TELL_EVERY_S = 30.0
_CANCEL_S = 5.0
QUIET_S = 5.0


async def run_jobs(
    client: RolloutClient,
    jobs: Iterator[tuple[Place, JobRequest]],
    results: ResultFile,
    summary: Summary,
    console: Console,
    *,
    total: int,
    workers: int,
) -> None:
    """Raises ``ServerUnreachable`` when the server is gone for good, ``NotARolloutServer``; what was written stays."""
    _end_on_sigterm()
    in_flight: set[str] = set()
    started = time.monotonic()

    async def work(show: _Show) -> None:
        for place, request in jobs:  # one iterator for all workers: no list of jobs is ever made
            job_id = request.job_id or ""
            in_flight.add(job_id)
            try:
                result = await client.process(request)
            except ServiceError as error:
                summary.refuse(str(error), line=place.line)
            else:
                # Ended by somebody, not by its policy: kept out of the file, so that it runs again next time.
                if result.status == "cancelled":
                    summary.refuse("cancelled on the server", line=place.line)
                else:
                    results.append(result, row=place, asked=Asked.of(request))
                    summary.add(result, fresh=True)
            in_flight.discard(job_id)
            show.tell()

    async with client:
        try:
            with _Show(console, summary, total=total) as show:
                watching = asyncio.create_task(_tell_of_trouble(client, show))
                try:
                    async with asyncio.TaskGroup() as group:
                        for _ in range(workers):
                            group.create_task(work(show))
                finally:
                    watching.cancel()
        except* ClientError as errors:
            raise errors.exceptions[0] from None
        finally:
            summary.wall_s = time.monotonic() - started
            if in_flight:
                with contextlib.suppress(ClientError, OSError, TimeoutError):
                    async with asyncio.timeout(_CANCEL_S):
                        await client.cancel(job_ids=tuple(in_flight))


async def _tell_of_trouble(client: RolloutClient, show: _Show) -> None:
    """Nothing has come back for a while: if that is for want of an LLM server say so, once for each reason."""
    said: str | None = None
    while True:
        await asyncio.sleep(QUIET_S)
        show.refresh()
        if time.monotonic() - show.last < QUIET_S:
            continue
        try:
            pool = (await client.status()).pool
        except ClientError:  # the rollouts' own calls find that out, and say so
            continue
        trouble = pool.trouble if pool.waiting else None
        if trouble is not None and trouble != said:
            show.say(f"waiting: {trouble}")
        said = trouble


class _Show:
    """A progress bar on a terminal, now and then a line elsewhere. ``last`` is when something came back."""

    def __init__(self, console: Console, summary: Summary, *, total: int) -> None:
        self._console = console
        self._summary = summary
        self._total = total
        self._bar = Progress(
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[told]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("rollouts", total=total, told="")
        self._started = self._told = self.last = time.monotonic()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def tell(self) -> None:
        """Something came back."""
        self.last = time.monotonic()
        self.refresh()

    def refresh(self) -> None:
        now = time.monotonic()
        done = self._summary.fresh + self._summary.refusals
        mean = self._summary.mean_reward
        reward = "-" if mean is None else f"{mean:.3f}"
        rate = done / max(now - self._started, 1e-9)
        told = f"{rate:.2f}/s  reward {reward}  failed {self._summary.failures}"
        self._bar.update(self._task, completed=done, told=told)
        if not self._console.is_terminal and now - self._told >= _TELL_EVERY_S:
            self._told = now
            self._console.print(f"{done}/{self._total}  {told}")

    def say(self, text: str) -> None:
        self._console.print(escape(text))


def _end_on_sigterm() -> None:
    """A batch system's SIGTERM ends the run as ^C does: jobs cancelled, the file whole."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
