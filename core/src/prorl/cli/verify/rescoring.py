"""Ask an engine what it makes of the recorded tokens, and compare.

Only what the engine can know is compared: replies of the version whose weights it has now, sampled from a distribution
that it can compute again. Everything else is counted, with the reason.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec

from prorl.api.errors import ConfigError, ModelFault
from prorl.api.llm import EngineInfo
from prorl.api.records import DialectRecord
from prorl.llm.dialects.scoring import KNOWN, Scores, scores_of
from prorl.llm.pool.connect import Connector
from prorl.llm.pool.settings import PoolSettings
from prorl.wire import BackendSpec, RolloutResult, Segment, Trajectory, Turn
from prorl.wire.certificate import Runs
from prorl.wire.soundness import Finding

_CUTS = ("top_p", "top_k", "min_p")


@asynccontextmanager
async def connect(
    url: str, dialects: Mapping[str, DialectRecord], *, dialect: str | None, model: str | None
) -> AsyncIterator[tuple[Scores, EngineInfo]]:
    """Raises ``ConfigError`` for what is no LLM server, or one that cannot score; ``ModelFault`` when none answers."""
    try:
        spec = msgspec.convert({"url": url.rstrip("/"), "dialect": dialect, "model": model}, BackendSpec)
    except msgspec.ValidationError as error:
        raise ConfigError(f"--engine {url!r} is no URL: give the server's root, like http://host:8000") from error
    connection = await Connector(dialects, PoolSettings()).connect(spec)
    async with aclosing(connection.client):
        info = connection.info
        scores = scores_of(connection.dialect, info, connection.client, spec.url)
        if scores is None:
            raise ConfigError(
                f"{url} speaks {info.dialect}, which has no way to score tokens that are there already: "
                f"use an engine that has ({', '.join(KNOWN)}) with the same weights"
            )
        yield scores, info


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """``token`` counts within its turn; both logprobs are natural logs."""

    size: float
    job_id: str
    turn: int
    token: int
    recorded: float
    engine: float


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    turn: Turn
    temperature: float


class Rescoring:
    """``version`` is what the engine's weights are called in the results; ``tolerance`` the largest gap that is taken
    for rounding."""

    def __init__(self, scores: Scores, *, version: str, tolerance: float, max_context: int) -> None:
        self._scores = scores
        self._version = version
        self._tolerance = tolerance
        self._longest = max_context - 1  # an engine also makes room for the token that nobody wants
        self.compared = 0
        self.skipped: Counter[str] = Counter()
        self.largest: Gap | None = None
        self._sum = 0.0

    async def check(self, result: RolloutResult) -> list[Finding]:
        """Of a result whose structure is sound. Raises ``ModelFault`` when the engine cannot be asked."""
        trajectory = result.trajectory
        work = [
            self._check_replies(result.job_id, trajectory.segments[number], replies)
            for number, replies in self._replies(trajectory).items()
        ]
        return [finding for found in await asyncio.gather(*work) for finding in found]

    def as_dict(self) -> dict[str, Any]:
        return {
            "version": self._version,
            "tokens_compared": self.compared,
            "largest_gap": None if self.largest is None else self.largest.size,
            "mean_gap": self._sum / self.compared if self.compared else None,
            "largest_gap_at": None if self.largest is None else msgspec.to_builtins(self.largest),
            "tokens_not_compared": dict(self.skipped),
        }

    def _replies(self, trajectory: Trajectory) -> dict[int, list[Reply]]:
        """By segment, those that can be compared."""
        chosen: defaultdict[int, list[Reply]] = defaultdict(list)
        runs = [Runs(segment) for segment in trajectory.segments]
        for number, turn in enumerate(trajectory.turns):
            if turn.role != "assistant" or turn.start == turn.end:
                continue
            why = self._why_not(trajectory, turn, runs[turn.segment])
            if why is not None:
                self.skipped[why] += turn.end - turn.start
                continue
            bent = trajectory.logprob_kind != "raw"
            temperature = turn.sampling.get("temperature", 1.0) if bent else 1.0
            chosen[turn.segment].append(Reply(number=number, turn=turn, temperature=temperature))
        return chosen

    def _why_not(self, trajectory: Trajectory, turn: Turn, runs: Runs) -> str | None:
        versions = [run.version for run in runs.within(turn.start, turn.end)]
        if not trajectory.trainable:
            return "not from an engine that reports tokens"
        if len(set(versions)) > 1:
            return "weights changed within the reply"
        if versions != [self._version]:
            return f"version {versions[0] if versions else '?'}"
        if trajectory.logprob_kind == "processed" and (cuts := [name for name in _CUTS if name in turn.sampling]):
            return f"sampled with {', '.join(cuts)}"
        if turn.end > self._longest:
            return "no room left in the engine's context"
        return None

    async def _check_replies(self, job_id: str, segment: Segment, replies: list[Reply]) -> list[Finding]:
        found: list[Finding] = []
        for temperature in {reply.temperature for reply in replies}:
            same = [reply for reply in replies if reply.temperature == temperature]
            ids = segment.tokens[: max(reply.turn.end for reply in same)]
            try:
                scored = await self._scores.score(ids, temperature=temperature)
            except ModelFault as fault:
                if fault.code == "unsupported":
                    self.skipped[f"temperature {temperature:g}"] += sum(r.turn.end - r.turn.start for r in same)
                elif fault.code == "rejected":
                    found.append(_finding(same[0], f"the engine does not take these tokens: {fault}"))
                else:
                    raise
                continue
            for reply in same:
                found += self._compare(job_id, segment, reply, scored)
        return found

    def _compare(self, job_id: str, segment: Segment, reply: Reply, scored: list[float | None]) -> Iterator[Finding]:
        worst: Gap | None = None
        for place in range(reply.turn.start, reply.turn.end):
            recorded, engine = segment.logprobs[place], scored[place]
            if recorded is None:
                continue  # the structure's checks have said so
            if engine is None or not math.isfinite(engine):
                yield _finding(reply, f"token {place - reply.turn.start}: the engine has no logprob of it ({engine})")
                return
            size = abs(recorded - engine)
            self.compared += 1
            self._sum += size
            if worst is None or size > worst.size:
                worst = Gap(
                    size=size,
                    job_id=job_id,
                    turn=reply.number,
                    token=place - reply.turn.start,
                    recorded=recorded,
                    engine=engine,
                )
        if worst is None:
            return
        if self.largest is None or worst.size > self.largest.size:
            self.largest = worst
        if worst.size > self._tolerance:
            yield _finding(
                reply,
                f"token {worst.token} has the logprob {worst.recorded:.6g}; the engine says {worst.engine:.6g} "
                f"(gap {worst.size:.3g})",
            )


def _finding(reply: Reply, message: str) -> Finding:
    return Finding(code="other_logprob", message=message, segment=reply.turn.segment, turn=reply.number)
