"""What ``prorl demo`` prints: a scored table, and a trajectory turn by turn with its tokens."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from prorl.cli.console import print_table, table
from prorl.wire import RolloutResult, Trajectory, Turn

_LONG = 10_000  # into a file: one line stays one line
_AS_IT_IS: dict[str, Any] = {"replace_whitespace": False, "drop_whitespace": False}
_HEAD, _TAIL = 4, 2
_EXCERPT = 300
_TASK, _NARROW, _OTHER_COLUMNS = 18, 20, 60


def show_results(console: Console, played: Sequence[tuple[str, dict[str, Any], RolloutResult]]) -> None:
    """A row takes two lines at most, at 80 columns too: what is longer is cut, and says so."""
    rows = table("policy", "task", "reward", "turns", "tools", "tokens", "verdict")
    verdict_width = max(_NARROW, console.width - _OTHER_COLUMNS)
    for policy, row, result in played:
        sampled = sum(sum(segment.loss_mask) for segment in result.trajectory.segments)
        colour = "green" if result.reward > 0 else "red"
        rows.add_row(
            escape(policy),
            escape(_two_lines(str(next(iter(row.values()), "")), _TASK)),
            f"[{colour}]{result.reward:.1f}[/]",
            str(sum(turn.role == "assistant" for turn in result.trajectory.turns)),
            str(result.metrics.get("tool_calls", 0)),
            str(sampled),
            escape(_two_lines(_verdict(result), verdict_width)),
        )
    console.print()
    print_table(console, rows)


def show_trajectory(
    console: Console, policy: str, trajectory: Trajectory, reward: float, spell: Callable[[int], str]
) -> None:
    """Each turn's text, and the first and last of its tokens. ``spell`` gives one token's text."""
    tokens = sum(len(segment.tokens) for segment in trajectory.segments)
    console.print(
        f"\n[bold]{escape(policy)}, first task, turn by turn[/] (reward {reward:.1f}, {tokens} tokens in one stream)"
    )
    console.print("mask 1: the engine sampled it here; mask 0: rendered once, never encoded again")
    for turn in trajectory.turns:
        source = f"  policy version {turn.policy_version}" if turn.policy_version else ""
        console.print(f"\n[bold]{turn.role}[/]  tokens {turn.start}..{turn.end - 1}{source}")
        for line in _quoted(turn, console.width - 4 if console.is_terminal else _LONG):
            console.print(f"  [dim]│[/] {escape(line)}")
        print_table(console, _tokens(trajectory, turn, spell))


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


def _quoted(turn: Turn, width: int) -> list[str]:
    """The beginning of what the model wrote, the end of what it was given: there is the task, or the tool's result."""
    text = turn.text.strip()
    if len(text) > _EXCERPT:
        kept = _EXCERPT - 4
        text = f"{text[:kept].rstrip()} ..." if turn.role == "assistant" else f"... {text[-kept:].lstrip()}"
    return [part for line in text.splitlines() for part in textwrap.wrap(line, width, **_AS_IT_IS) or [""]]


def _verdict(result: RolloutResult) -> str:
    if result.error is not None:
        return f"{result.error.kind}: {result.error.message}"
    return str(result.metrics.get("reason") or result.status)


def _two_lines(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(" ".join(text.split()), width, max_lines=2, placeholder=" ..."))
