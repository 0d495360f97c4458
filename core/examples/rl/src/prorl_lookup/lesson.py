"""What training knows of a task: a domain of the server's, rows for it, and how to show a policy the form.

The warm start asks a lesson for demonstrations, RL for jobs; neither looks inside. Another task is another module with
a ``LESSON`` in it, named on the command line, and nothing else changes.
"""

from __future__ import annotations

import importlib
import pkgutil
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from prorl.api import Message, ToolSchema
from prorl.wire import JobRequest, SamplingParams
from prorl_lookup import lessons

GAP = "¿"


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """``rows(chance)``: instances without end. ``demonstrate(chance)``: one rollout as messages, in which the policy's
    own, the assistant's, are right about every other time. ``fixed``: such rollouts with :data:`GAP` wherever rows
    differ, from which the tokenizer learns its words, at most ``merges`` for each of them.
    """

    domain: str
    rows: Callable[[random.Random], Iterator[dict[str, Any]]]
    demonstrate: Callable[[random.Random], list[Message]]
    fixed: list[Message]
    merges: int
    tools: tuple[ToolSchema, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    max_tokens: int = 24

    def request(self, row: dict[str, Any]) -> JobRequest:
        """A rollout of a row."""
        sampling = SamplingParams(max_tokens=self.max_tokens)
        return JobRequest(domain=self.domain, instance=row, sampling_params=sampling, settings=self.settings)


def known() -> list[str]:
    """The names of the lessons that come with this package."""
    return sorted(module.name for module in pkgutil.iter_modules(lessons.__path__))


def load(name: str) -> Lesson:
    """One of :func:`known`, or of any module that has a ``LESSON``, by its dotted name. Raises ``ValueError``."""
    path = name if "." in name else f"{lessons.__name__}.{name}"
    try:
        found = importlib.import_module(path).LESSON
    except ModuleNotFoundError as error:
        if error.name and path.startswith(error.name):
            raise ValueError(f"no lesson {name!r}: there are {', '.join(known())}, and modules of your own") from error
        raise ValueError(f"the lesson {name!r} needs {error.name}, which is not installed") from error
    except AttributeError as error:
        raise ValueError(f"{path} has no LESSON") from error
    if not isinstance(found, Lesson):
        raise ValueError(f"{path}.LESSON is no Lesson, but {type(found).__name__}")  # noqa: TRY004 - of what was named
    return found


def requests(taught: Sequence[Lesson], seed: int) -> Iterator[JobRequest]:
    """Jobs without end, the lessons by turns."""
    streams = [lesson.rows(random.Random(seed)) for lesson in taught]
    while True:
        for lesson, rows in zip(taught, streams, strict=True):
            yield lesson.request(next(rows))
