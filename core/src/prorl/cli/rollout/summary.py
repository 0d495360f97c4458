"""What a run came to: counted as results come in, shown as a table or as JSON."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.markup import escape

from prorl.cli.console import print_table, table
from prorl.cli.rollout.rows import lines_in_words
from prorl.wire import STAGES, RolloutResult

_REASONS_SHOWN = 5
_REASON_CHARS = 300


@dataclass
class Summary:
    """Sums over the results in the file: those of this run (``fresh``) and those of earlier ones."""

    statuses: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    refused: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    fresh: int = 0
    results: int = 0
    masked: int = 0
    resolved: int = 0
    reward_sum: float = 0.0
    sampled_tokens: int = 0
    other_tokens: int = 0
    fresh_tokens: int = 0
    wall_s: float = 0.0

    def add(self, result: RolloutResult, *, fresh: bool) -> None:
        sampled = sum(sum(segment.loss_mask) for segment in result.trajectory.segments)
        self.results += 1
        self.statuses[result.status] += 1
        self.sampled_tokens += sampled
        self.other_tokens += sum(len(segment.tokens) for segment in result.trajectory.segments) - sampled
        if fresh:
            self.fresh += 1
            self.fresh_tokens += sampled
        if result.mask_sample:
            self.masked += 1
        else:
            self.reward_sum += result.reward
            self.resolved += result.resolved
        if result.error is not None:
            self.reasons[f"{result.error.kind}: {_short(result.error.message)}"] += 1
        elif isinstance(verdict := result.metrics.get("reason"), str):
            self.verdicts[_short(verdict)] += 1
        for stage in STAGES:
            timing = getattr(result.timing, stage)
            self.seconds[f"{stage} queued"] += timing.queued_s
            self.seconds[f"{stage} worked"] += timing.worked_s
        self.seconds["model"] += result.timing.model_s
        self.seconds["tools"] += result.timing.tools_s

    def refuse(self, reason: str, *, line: int) -> None:
        """The server would not take a row: not a result, so the next run tries it again."""
        self.refused[reason].append(line)

    @property
    def refusals(self) -> int:
        return sum(map(len, self.refused.values()))

    @property
    def scored(self) -> int:
        return self.results - self.masked

    @property
    def mean_reward(self) -> float | None:
        return self.reward_sum / self.scored if self.scored else None

    @property
    def failures(self) -> int:
        return self.results - self.statuses["completed"] + self.refusals

    def as_dict(self) -> dict[str, Any]:
        return {
            "results": self.results,
            "fresh": self.fresh,
            "statuses": dict(self.statuses),
            "masked": self.masked,
            "mean_reward": self.mean_reward,
            "resolved": self.resolved,
            "sampled_tokens": self.sampled_tokens,
            "other_tokens": self.other_tokens,
            "sampled_tokens_per_s": self._rate(self.fresh_tokens),
            "rollouts_per_s": self._rate(self.fresh),
            "wall_s": self.wall_s,
            "mean_seconds": {name: spent / self.results for name, spent in self.seconds.items()}
            if self.results
            else {},
            "verdicts": dict(self.verdicts),
            "reasons": dict(self.reasons),
            "refused": {reason: len(lines) for reason, lines in self.refused.items()},
        }

    def show(self, console: Console) -> None:
        if self.results or not self.refused:
            self._show_sums(console)
        _show_counts(console, "verdicts", self.verdicts, "metrics.reason")
        _show_counts(console, "errors", self.reasons, "error")
        if self.refused:
            console.print("\n[bold]refused by the server[/]")
        for reason, lines in sorted(self.refused.items(), key=lambda each: -len(each[1]))[:_REASONS_SHOWN]:
            console.print(f"  {lines_in_words(sorted(lines))}: {escape(reason)}")
        if len(self.refused) > _REASONS_SHOWN:
            console.print(f"  and for {len(self.refused) - _REASONS_SHOWN} more reasons: --json has them all")

    def _show_sums(self, console: Console) -> None:
        mean = "-" if self.mean_reward is None else f"{self.mean_reward:.4f}"
        masked = f", {self.masked} masked left out" if self.masked else ""
        listing = table("", "")
        listing.show_header = False
        listing.add_row("rollouts", f"{self.results} ({self.fresh} in this run)")
        listing.add_row(
            "status", ", ".join(f"{count} {status}" for status, count in self.statuses.most_common()) or "-"
        )
        listing.add_row("mean reward", f"{mean} (of {self.scored}{masked})")
        listing.add_row("resolved", f"{self.resolved} of {self.scored}")
        listing.add_row("tokens", f"{self.sampled_tokens:,} sampled, {self.other_tokens:,} prompt and tools")
        listing.add_row(
            "speed",
            f"{self._rate(self.fresh_tokens):,.1f} sampled tokens/s, {self._rate(self.fresh):,.2f} rollouts/s "
            f"over {self.wall_s:,.1f} s",
        )
        for stage in STAGES if self.results else ():
            queued, worked = (self.seconds[f"{stage} {kind}"] / self.results for kind in ("queued", "worked"))
            model, tools = self.seconds["model"] / self.results, self.seconds["tools"] / self.results
            inner = f" (model {model:.2f} s, tools {tools:.2f} s)" if stage == "run" else ""
            listing.add_row(f"{stage}, mean", f"{worked:.2f} s worked{inner}, {queued:.2f} s queued")
        print_table(console, listing)

    def _rate(self, amount: int) -> float:
        return amount / self.wall_s if self.wall_s > 0 else 0.0


def _show_counts(console: Console, title: str, counts: Counter[str], where: str) -> None:
    shown = counts.most_common(_REASONS_SHOWN)
    if shown:
        console.print(f"\n[bold]{title}[/]")
    for reason, count in shown:
        console.print(f"  {count} x {escape(reason)}")
    if more := counts.total() - sum(count for _, count in shown):
        console.print(f"  and {more:,} more: `{where}` in each result says which")


def _short(message: str) -> str:
    """One line, which says so where something was left out."""
    line = " ".join(message.split())
    return line if len(line) <= _REASON_CHARS else f"{line[:_REASON_CHARS]}..."
