"""Whose fault it was.

::

    ProrlError
    ├── Fault                  one rollout went wrong; becomes data in its result
    │   ├── ModelFault         the LLM server, or what it returned
    │   ├── SandboxFault       runtime, container, action server
    │   ├── TaskFault          the task row, or the handler's own code
    │   ├── GraderFault        the grader broke: never reward 0 or 1, the sample is masked
    │   ├── BudgetExceeded     the job's time for a stage, or in total
    │   └── JobCancelled       somebody asked
    └── ConfigError            settings, records or requests that cannot work; says what to do

A handler's author raises plain exceptions; :func:`boundary` says which part of the house they came from.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from prorl.wire.results import FaultKind


class ProrlError(Exception):
    """Base of everything this package raises on purpose."""


class ConfigError(ProrlError):
    """Something was asked for that cannot work. The message is one line that says what to do."""


class Fault(ProrlError):  # noqa: N818 - "fault" is the word of the design: data in a result, not a crash
    """A rollout went wrong. ``code`` is a stable slug for programs, ``masks`` keeps the sample out of training."""

    kind: ClassVar[FaultKind] = "internal"
    masks: ClassVar[bool] = True

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class ModelFault(Fault):
    kind = "model"


class ContextOverflow(ModelFault):
    """The next reply would not fit the engine's context. The policy's own doing: the sample stays trainable.

    ``needed`` is the length in tokens of what did not fit, where there was something to add.
    """

    masks = False

    def __init__(self, message: str, *, needed: int | None = None) -> None:
        super().__init__(message, code="context_overflow")
        self.needed = needed


class SandboxFault(Fault):
    kind = "sandbox"


class TaskFault(Fault):
    kind = "task"


class GraderFault(Fault):
    kind = "grader"


class BudgetExceeded(Fault):
    """Out of time. The policy took too long as often as not: whether to mask is the handler's to say."""

    kind = "timeout"
    masks = False


class JobCancelled(Fault):
    kind = "cancelled"


@contextmanager
def boundary(fault: type[Fault], what: str) -> Iterator[None]:
    """Turn any plain exception of the block into ``fault``; typed faults and cancellation pass through."""
    try:
        yield
    except Fault:
        raise
    except Exception as error:
        raise fault(f"{what}: {type(error).__name__}: {error}") from error
