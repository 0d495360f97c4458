"""From what was raised to what the result says: whose fault, and whether to train on the sample."""

from __future__ import annotations

import asyncio
import traceback
from typing import get_args

from prorl.api.errors import BudgetExceeded, Fault, GraderFault, JobCancelled, TaskFault
from prorl.wire.jobs import StageName
from prorl.wire.results import FaultKind, RolloutError, Status

MESSAGE_LIMIT = 4_000
TRACEBACK_LIMIT = 16_000


def as_fault(error: BaseException, stage: StageName, handler: str) -> Fault:
    """A typed fault as it is; a plain exception of the handler's own code as the task's fault, in EVAL the grader's."""
    if isinstance(error, Fault):
        return error
    kind = GraderFault if stage == "eval" else TaskFault
    what = f"{handler}.{stage} raised {type(error).__name__}"
    if isinstance(error, asyncio.CancelledError):
        what = f"{handler}.{stage} cancelled itself"
    said = text_of(error)
    fault = kind(f"{what}: {said}" if said else what, code="handler_error")
    fault.__cause__ = error
    return fault


def masks(fault: Fault, stage: StageName) -> bool:
    """Running out of time is the policy's own doing only while the policy is at work."""
    return bool(fault.masks) or (isinstance(fault, BudgetExceeded) and stage != "run")


def status_of(fault: Fault | None) -> Status:
    match fault:
        case None:
            return "completed"
        case BudgetExceeded():
            return "timed_out"
        case JobCancelled():
            return "cancelled"
        case _:
            return "failed"


def describe(fault: Fault, stage: StageName) -> RolloutError:
    """The fault as data, with the traceback of the exception beneath it (trimmed in the middle)."""
    cause = fault.__cause__
    trace = None
    if cause is not None and not isinstance(cause, asyncio.CancelledError):
        trace = trim("".join(traceback.format_exception(cause, chain=False, limit=-40)), TRACEBACK_LIMIT)
    return RolloutError(
        kind=fault.kind if fault.kind in get_args(FaultKind) else "internal",
        message=trim(text_of(fault) or type(fault).__name__, MESSAGE_LIMIT),
        code=None if fault.code is None else trim(str(fault.code), 200),
        stage=stage,
        traceback=trace,
    )


def text_of(error: BaseException) -> str:
    """``str(error)``, also of an exception whose ``__str__`` fails."""
    try:
        return str(error)
    except BaseException as broken:
        return f"<its __str__ raised {type(broken).__name__}>"


def trim(text: str, limit: int) -> str:
    """At most ``limit`` characters, cut in the middle; no lone surrogates, which no encoder takes."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - limit} characters left out ...\n{text[-half:]}"
