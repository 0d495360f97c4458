"""What the tiny model can be taught: a domain of the server's, rows for it, and how to show a policy the form.

A lesson is all that training knows of a task: the warm start asks it for demonstrations, RL for jobs. Neither looks
inside, so that another task is another lesson, and nothing else changes.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from prorl.api import Message, ToolSchema
from prorl.wire import JobRequest, SamplingParams

MODULES = {
    name: f"prorl_lookup.lessons.{module}"
    for name, module in (("lookup", "lookup"), ("math", "sums"), ("code", "functions"))
}


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """``rows(chance)``: instances without end. ``demonstrate(chance)``: one rollout as messages, in which the policy's
    own, the assistant's, are right about every other time. ``fixed``: such a rollout with :data:`GAP` wherever rows
    differ, from which the tokenizer learns its words.
    """

    domain: str
    rows: Callable[[random.Random], Iterator[dict[str, Any]]]
    demonstrate: Callable[[random.Random], list[Message]]
    fixed: list[Message]
    tools: tuple[ToolSchema, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    max_tokens: int = 24

    def request(self, row: dict[str, Any]) -> JobRequest:
        """A rollout of a row."""
        sampling = SamplingParams(max_tokens=self.max_tokens)
        return JobRequest(domain=self.domain, instance=row, sampling_params=sampling, settings=self.settings)


GAP = "¿"


def lessons(names: tuple[str, ...]) -> tuple[Lesson, ...]:
    """By name; a lesson's packages are imported only where it is asked for. Raises ``ValueError``."""
    unknown = [name for name in names if name not in MODULES]
    if unknown or not names:
        raise ValueError(f"no lesson {', '.join(unknown) or 'named'}: there are {', '.join(MODULES)}")
    return tuple(importlib.import_module(MODULES[name]).LESSON for name in names)


def requests(taught: Sequence[Lesson], seed: int) -> Iterator[JobRequest]:
    """Jobs without end, the lessons by turns."""
    streams = [lesson.rows(random.Random(seed)) for lesson in taught]
    while True:
        for lesson, rows in zip(taught, streams, strict=True):
            yield lesson.request(next(rows))
