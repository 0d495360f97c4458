"""A job as it is asked for, and the identity it keeps."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from prorl.wire.rendering import RenderingParams
from prorl.wire.sampling import SamplingParams

Seconds = Annotated[float, msgspec.Meta(gt=0.0, le=604_800.0)]
# `$` alone also matches before a last line break, which would then stand in a header.
JobId = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=200,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@+\-]*$(?!\n)",
        examples=["step12-prompt7-sample0 (letters, digits, . _ : @ + - after the first)"],
    ),
]
StageName = Literal["init", "run", "eval"]
# Codes of a cancelled job's error when nobody gave the job up: it is run anew when it is sent again.
SERVER_STOPPED = "server_stopped"
CLIENT_GONE = "client_gone"  # of a job that asked for that by ``cancel_on_disconnect``
RUN_ANEW = (SERVER_STOPPED, CLIENT_GONE)
STAGES: tuple[StageName, ...] = ("init", "run", "eval")


class Budgets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds of *work* a job may use, per stage and in total; ``None`` takes the server's default.

    Time in a queue, and time while the LLM pool is paused for a weight update, is not counted. ``collect_s`` is for
    fetching what a run left behind that was cut short, by its time or a fault; it is beside ``run_s`` and ``total_s``.
    """

    init_s: Seconds | None = None
    run_s: Seconds | None = None
    collect_s: Seconds | None = None
    eval_s: Seconds | None = None
    total_s: Seconds | None = None


class JobRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rollout of one task instance (``POST /process``, ``POST /jobs``).

    ``domain`` picks the handler; without it ``instance["data_source"]`` does. ``job_id`` makes a resend harmless: the
    same id with the same body attaches to the running (or finished) job. ``group_id`` ties the n samples of a prompt.
    ``settings`` overrides the handler's settings for this job. Higher ``priority`` is served first.
    ``backend_wait_s`` is how long a model call may wait for an LLM server to be registered (``None``: the server's
    default; 0: fail at once). ``cancel_on_disconnect`` cancels when the client of a blocking call goes
    away; sent again after that, the job is run anew.
    """

    instance: dict[str, Any]
    domain: Annotated[str, msgspec.Meta(min_length=1, max_length=200)] | None = None
    job_id: JobId | None = None
    group_id: JobId | None = None
    sampling_params: SamplingParams = SamplingParams()
    rendering: RenderingParams = RenderingParams()
    budgets: Budgets = Budgets()
    priority: Annotated[int, msgspec.Meta(ge=-1_000_000, le=1_000_000)] = 0
    settings: dict[str, Any] = {}
    backend_wait_s: Annotated[float, msgspec.Meta(ge=0.0, le=86_400.0)] | None = None
    cancel_on_disconnect: bool = False


class CancelRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``POST /cancel``: one job, several, a whole group, or everything. At least one field must be given."""

    job_id: str | None = None
    job_ids: tuple[str, ...] = ()
    group_id: str | None = None
    all: bool = False


class StopRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``POST /stop``: ``drain`` lets accepted jobs finish (up to ``timeout_s``); otherwise they are cancelled."""

    drain: bool = False
    timeout_s: Seconds = 60.0
