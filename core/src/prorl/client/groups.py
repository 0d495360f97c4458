"""Groups: the n rollouts of one prompt, as group-relative RL (GRPO, DAPO) trains on them.

A *sample* is one of the n places; it may take several attempts. A group is *informative* when its rewards differ: only
then is there an advantage to learn from.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from prorl.client.errors import ClientError
from prorl.wire.jobs import JobRequest
from prorl.wire.results import RolloutResult

_USABLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+\-]{0,119}")


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """What a group is rolled out from. ``request`` has no job id yet; ``prompt_id`` is the trainer's own name, and
    becomes the beginning of the group's id and of its rollouts'. A ``group_id`` in ``request`` is kept for the service.
    Raises ``ValueError`` for one that cannot."""

    prompt_id: str
    request: JobRequest

    def __post_init__(self) -> None:
        if not _USABLE.fullmatch(self.prompt_id):
            raise ValueError(f"prompt_id {self.prompt_id[:80]!r} must be of letters, digits and . _ : + -, at most 120")


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One finished attempt at a sample: a result, or why there is none. ``step`` is the trainer's when it began."""

    job_id: str
    step: int
    result: RolloutResult | None = None
    error: ClientError | None = None

    @property
    def trainable(self) -> bool:
        result = self.result
        return result is not None and not result.mask_sample and result.trajectory.trainable

    @property
    def trouble(self) -> str:
        """Why it cannot be trained on, as ``kind/code``; empty when it can."""
        if self.result is None:
            return f"lost/{type(self.error).__name__}"
        return "" if self.trainable else trouble_of(self.result)


@dataclass(eq=False)
class Group:
    """``kept`` holds the trainable attempt of each sample, by its index; ``failed`` every other one."""

    group_id: str
    prompt: Prompt
    size: int
    kept: dict[int, Attempt] = field(default_factory=dict)
    failed: list[tuple[int, Attempt]] = field(default_factory=list)
    given_up: set[int] = field(default_factory=set)

    @property
    def ended(self) -> bool:
        """Every sample has its result, or has been given up."""
        return len(self.kept) + len(self.given_up) == self.size

    @property
    def results(self) -> list[RolloutResult]:
        """The trainable results, in the order of their samples."""
        return [attempt.result for _, attempt in sorted(self.kept.items()) if attempt.result is not None]

    @property
    def rewards(self) -> list[float]:
        return [result.reward for result in self.results]

    @property
    def oldest_step(self) -> int | None:
        return min((attempt.step for attempt in self.kept.values()), default=None)

    def tries(self, sample: int) -> int:
        return sum(index == sample for index, _ in self.failed)

    def troubles(self) -> Counter[str]:
        return Counter(attempt.trouble for _, attempt in self.failed)


Informative = Callable[[Group], bool]


def trouble_of(result: RolloutResult) -> str:
    """What kept a rollout from being trained on, as ``kind/code`` of its fault where there was one."""
    if result.error is None:
        return "masked" if result.mask_sample else "without_tokens"
    kind, code = result.error.kind, result.error.code
    return kind if code is None else f"{kind}/{code}"


def rewards_differ(group: Group) -> bool:
    """DAPO's filter: a group whose rewards are all equal teaches nothing."""
    rewards = group.rewards
    return len(rewards) > 1 and max(rewards) - min(rewards) > 1e-9
