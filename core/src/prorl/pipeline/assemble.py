"""The last step: a job's record becomes a :class:`RolloutResult`, as JSON.

It cannot fail: a job always has a result.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from prorl.api.errors import Fault
from prorl.pipeline.faults import describe, status_of, text_of
from prorl.pipeline.record import JobRecord
from prorl.pipeline.verdict import Verdict, read_verdict, versions_in
from prorl.wire.certificate import sign
from prorl.wire.results import RolloutError, RolloutResult, Status, Timing
from prorl.wire.trajectory import Trajectory

log = logging.getLogger("prorl.pipeline")
_encoder = msgspec.json.Encoder()


def assemble(record: JobRecord, *, server: str, key: bytes | None = None) -> tuple[Status, bytes]:
    """The job's status and its result as JSON, signed if there is a ``key``."""
    try:
        if record.broken is not None:
            raise record.broken  # noqa: TRY301 - both ways in which our own code can fail end below
        result = _signed(_result(record, server), key)
        return result.status, _encoder.encode(result)
    except BaseException as bug:  # what a handler returned may raise anything when it is looked at
        log.exception("job %s: no result could be assembled", record.id)
        error = RolloutError(kind="internal", message=f"{type(bug).__name__}: {text_of(bug)}", stage=record.stage)
        error.message = error.message.encode("utf-8", "replace").decode()
        return "failed", _encoder.encode(_signed(_bare(record, server, error), key))


def _signed(result: RolloutResult, key: bytes | None) -> RolloutResult:
    return result if key is None else sign(key, result)


def _result(record: JobRecord, server: str) -> RolloutResult:
    live = record.live
    notes: list[str] = []
    timing, trajectory = Timing(), Trajectory()
    fault: Fault | None = None
    stage, mask = record.stage, False
    verdict = Verdict()
    if live is not None:
        timing, stage = live.timing, live.fault_stage
        trajectory = live.services.trajectory()
        verdict = read_verdict(live.verdict, graded=live.graded)
        if verdict.fault is not None:
            live.fail(verdict.fault, "eval")
            stage = live.fault_stage
        fault, mask = live.fault, live.mask
        notes = [*live.notes, *verdict.notes]
    if record.cancelled is not None:
        fault, stage, mask = record.cancelled, record.stage, True
    timing.total_s = round(record.age(), 6)
    if timing.model_s or timing.tools_s:
        timing.model_s, timing.tools_s = round(timing.model_s, 6), round(timing.tools_s, 6)
    metrics: dict[str, Any] = verdict.metrics
    if notes:
        metrics["pipeline_notes"] = [note.encode("utf-8", "replace").decode() for note in notes]
    return RolloutResult(
        job_id=record.id,
        status=status_of(fault),
        stage=record.stage,
        handler=record.handler.name,
        group_id=record.group_id,
        instance_id=_instance_id(record),
        error=describe(fault, stage) if fault is not None else None,
        reward=verdict.reward,
        resolved=verdict.resolved,
        # A verdict may mask a sound sample; it cannot make a broken one trainable.
        mask_sample=mask or bool(verdict.mask_sample),
        metrics=metrics,
        artifacts=verdict.artifacts,
        trajectory=trajectory,
        timing=timing,
        policy_versions=versions_in(trajectory),
        server=server,
    )


def _bare(record: JobRecord, server: str, error: RolloutError) -> RolloutResult:
    return RolloutResult(
        job_id=record.id,
        status="failed",
        stage=record.stage,
        handler=record.handler.name,
        group_id=record.group_id,
        error=error,
        mask_sample=True,
        timing=Timing(total_s=round(record.age(), 6)),
        server=server,
    )


def _instance_id(record: JobRecord) -> str | None:
    """The row's own name for itself, as data sets spell it."""
    instance = record.request.instance
    extra = instance.get("extra_info")
    for source in (instance, extra if isinstance(extra, dict) else {}):
        for key in ("instance_id", "id", "index"):
            value = source.get(key)
            if isinstance(value, str) or type(value) is int:
                return str(value)
    return None
