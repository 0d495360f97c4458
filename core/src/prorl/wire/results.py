"""What a rollout comes back as. Whatever happened to it, the result is well formed."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from prorl.wire.jobs import StageName
from prorl.wire.trajectory import Trajectory

Status = Literal["completed", "failed", "timed_out", "cancelled"]
JobState = Literal["queued", "running", "completed", "failed", "timed_out", "cancelled"]
FaultKind = Literal["model", "sandbox", "task", "grader", "timeout", "cancelled", "internal"]


class RolloutError(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Whose fault it was. ``code`` is a stable slug (``context_overflow``, ``no_backend``); ``message`` is prose."""

    kind: FaultKind
    message: str
    code: str | None = None
    stage: StageName | None = None
    traceback: str | None = None


class StageTiming(msgspec.Struct, kw_only=True):
    """Seconds a job waited for a stage's worker, and seconds of work in it."""

    queued_s: float = 0.0
    worked_s: float = 0.0


class Timing(msgspec.Struct, kw_only=True):
    """Where the time went. ``model_s`` and ``tools_s`` are parts of the run stage; ``total_s`` is wall time."""

    init: StageTiming = msgspec.field(default_factory=StageTiming)
    run: StageTiming = msgspec.field(default_factory=StageTiming)
    eval: StageTiming = msgspec.field(default_factory=StageTiming)
    model_s: float = 0.0
    tools_s: float = 0.0
    total_s: float = 0.0


class RolloutResult(msgspec.Struct, kw_only=True):
    """One finished rollout.

    ``stage`` is the last stage entered. ``mask_sample`` says "do not train on it": the reward is not the policy's doing
    (a fault of sandbox, grader or server, a cancelled job). ``resolved`` is the domain's own notion of success.
    ``policy_versions`` lists the versions that sampled tokens, in order of first use.
    """

    job_id: str
    status: Status
    stage: StageName
    handler: str
    group_id: str | None = None
    instance_id: str | None = None
    error: RolloutError | None = None
    reward: float = 0.0
    resolved: bool = False
    mask_sample: bool = False
    metrics: dict[str, Any] = {}
    artifacts: dict[str, Any] = {}
    trajectory: Trajectory = msgspec.field(default_factory=Trajectory)
    timing: Timing = msgspec.field(default_factory=Timing)
    policy_versions: list[str] = []
    attempts: int = 1
    server: str = ""


class JobView(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A job as ``GET /jobs/{id}`` shows it: ``result`` once it has ended."""

    job_id: str
    state: JobState
    handler: str
    group_id: str | None = None
    stage: StageName | None = None
    accepted_at: str | None = None
    result: RolloutResult | None = None


class JobEvent(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line of ``GET /jobs/{id}/events``. ``seq`` counts from 1 within a job; ``kind`` is a dotted slug."""

    job_id: str
    seq: int
    kind: str
    at_s: float
    data: dict[str, Any] = {}
