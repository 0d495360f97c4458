"""What the three methods of a handler return, checked before the job keeps it."""

from __future__ import annotations

from typing import Any

from prorl.api.errors import GraderFault, TaskFault
from prorl.pipeline.record import LiveJob
from prorl.wire.jobs import StageName


def keep_output(stage: StageName, handler: str, live: LiveJob, value: Any) -> None:
    """Put a stage's output onto the job. Raises ``TaskFault`` or, in EVAL, ``GraderFault`` for a wrong shape."""
    job = live.job
    if stage == "init":
        if not (isinstance(value, tuple) and len(value) == 3):
            raise TaskFault(
                f"{handler}.init returned {type(value).__name__}, not (runtime, metadata, config)", code="bad_output"
            )
        runtime, metadata, config = value
        if not (isinstance(metadata, dict) and isinstance(config, dict)):
            raise TaskFault(
                f"{handler}.init returned metadata as {type(metadata).__name__} and config as {type(config).__name__}; "
                "both must be dicts",
                code="bad_output",
            )
        if runtime is not None:
            if not callable(getattr(runtime, "stop", None)):
                raise TaskFault(
                    f"{handler}.init returned {type(runtime).__name__} as the runtime, which has no stop()",
                    code="bad_output",
                )
            live.services.adopt(runtime)
        job.runtime, job.metadata, job.config = runtime, metadata, config
        return
    if not isinstance(value, dict):
        fault = GraderFault if stage == "eval" else TaskFault
        raise fault(f"{handler}.{stage} returned {type(value).__name__}, not a dict", code="bad_output")
    if stage == "run":
        job.run_output = value
    else:
        job.eval_output = value
