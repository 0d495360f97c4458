"""A row of Gym's as a job.

A row holds ``instance`` (what the task's handler takes), may hold ``domain`` and ``settings``, and carries Gym's
``responses_create_params``, in which NeMo RL writes the sampling that its own loss assumes.
"""

from __future__ import annotations

from typing import Any

import msgspec

from prorl.wire.jobs import JobRequest
from prorl_nemo_rl.settings import RolloutSettings

_TASK = "_ng_task_index"  # Gym's number of a prompt, and NeMo RL's after 0.7
_SAMPLING = {"temperature": "temperature", "top_p": "top_p", "max_tokens": "max_output_tokens"}


class BadRow(ValueError):  # noqa: N818 - says what it is
    """The row cannot be a job; the message says why."""


def job_of(row: dict[str, Any], settings: RolloutSettings, *, run_id: str) -> JobRequest:
    """Raises :class:`BadRow`."""
    asked = row.get("responses_create_params") or {}
    sampling = {ours: asked[theirs] for ours, theirs in _SAMPLING.items() if asked.get(theirs) is not None}
    body = {
        "instance": row.get("instance"),
        "domain": row.get("domain", settings.domain),
        "group_id": f"{run_id}-task{row[_TASK]}" if _TASK in row else None,
        "sampling_params": msgspec.to_builtins(settings.sampling_params) | sampling,
        "rendering": msgspec.to_builtins(settings.rendering),
        "budgets": msgspec.to_builtins(settings.budgets),
        "settings": settings.settings | (row.get("settings") or {}),
        "backend_wait_s": settings.engine_wait_s,
        "cancel_on_disconnect": True,  # whoever hangs up, or dies, leaves no rollout behind
    }
    try:
        return msgspec.convert(body, JobRequest)
    except msgspec.ValidationError as error:
        raise BadRow(f"the row is no job: {error}") from None
