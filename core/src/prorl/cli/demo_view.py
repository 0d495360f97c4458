"""What ``prorl demo`` prints: a scored table, and a trajectory turn by turn with its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from prorl.cli.console import table
from prorl.wire import RolloutResult, Trajectory, Turn

_HEAD, _TAIL = 4, 2
_EXCERPT = 300


def show_results(console: Console, played: Sequence[tuple[str, dict[str, Any], RolloutResult]]) -> None:
    rows = table("policy", "task", "reward", "turns", "tools", "tokens", "s", "verdict")
    for policy, row, result in played:
        sampled = sum(sum(segment.loss_mask) for segment in result.trajectory.segments)
        colour = "green" if result.reward > 0 else "red"
        rows.add_row(
            policy,
            escape(_short(str(next(iter(row.values()), "")), 20)),
            f"[{colour}]{result.reward:.1f}[/]",
            str(sum(turn.role == "assistant" for turn in result.trajectory.turns)),
            str(result.metrics.get("tool_calls", 0)),
            str(sampled),
            f"{result.timing.total_s:.0f}",
            escape(_verdict(result)),
        )
    console.print()
    console.print(rows)


def show_trajectory(
    console: Console, policy: str, trajectory: Trajectory, reward: float, spell: Callable[[int], str]
) -> None:
    """Each turn's text, and the first and last of its tokens. ``spell`` gives one token's text."""
    tokens = sum(len(segment.tokens) for segment in trajectory.segments)
    console.print(f"\n[bold]{policy}, first task, turn by turn[/] (reward {reward:.1f}, {tokens} tokens in one stream)")
    console.print("mask 1: the engine sampled it here; mask 0: rendered once, never encoded again")
    for turn in trajectory.turns:
        source = f"  policy version {turn.policy_version}" if turn.policy_version else ""
        console.print(f"\n[bold]{turn.role}[/]  tokens {turn.start}..{turn.end - 1}{source}")
        text = turn.text if turn.role == "assistant" else turn.text[-_EXCERPT:]
        for line in _short(text.strip(), _EXCERPT, lines=True).splitlines():
            console.print(f"  [dim]│[/] {escape(line)}")
        console.print(_tokens(trajectory, turn, spell))


def show_next_steps(console: Console, seconds: float) -> None:
    console.print(f"\nThat took {seconds:.0f} s. Where to look next:")
    console.print("  prorl doctor                     what works on this machine, and why not")
    console.print("  prorl serve --llm-server URL     a server for your own model, in front of your trainer")
    console.print("  prorl rollout FILE.jsonl         roll out a file of tasks through a server")
    console.print("  core/docs/write-a-task.md        a task of your own")


def _tokens(trajectory: Trajectory, turn: Turn, spell: Callable[[int], str]) -> Any:
    segment = trajectory.segments[turn.segment]
    rows = table("token", "id", "logprob", "mask")
    places = range(turn.start, turn.end)
    cut = len(places) > _HEAD + _TAIL + 1
    for place in [*places[:_HEAD], *places[-_TAIL:]] if cut else places:
        if cut and place == places[-_TAIL]:
            rows.add_row(f"... {len(places) - _HEAD - _TAIL} more", "", "", "")
        logprob = segment.logprobs[place]
        rows.add_row(
            escape(repr(spell(segment.tokens[place]))),
            str(segment.tokens[place]),
            "" if logprob is None else f"{logprob:.3f}",
            str(segment.loss_mask[place]),
        )
    return rows


def _verdict(result: RolloutResult) -> str:
    if result.error is not None:
        return _short(f"{result.error.kind}: {result.error.message}", 60)
    return _short(str(result.metrics.get("reason") or result.status), 60)


def _short(text: str, limit: int, *, lines: bool = False) -> str:
    """In one line unless ``lines``; cut at the end, saying so."""
    text = text if lines else " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 4].rstrip() + " ..."
