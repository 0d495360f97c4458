"""How the pipeline works: the ``[pipeline]`` table of prorl.toml."""

from __future__ import annotations

from typing import Annotated

import msgspec

from prorl.wire.jobs import Seconds

Workers = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
Count = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]


class BudgetSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[pipeline.budgets]``: seconds of work a job may use where its request does not say; what is unset here is the
    domain's to say, and :data:`BUDGETS` otherwise (``collect_s``: ``[pipeline] callback_s``)."""

    init_s: Annotated[
        Seconds | None, msgspec.Meta(description="work in INIT, in seconds; unset: the domain's own, else 600")
    ] = None
    run_s: Annotated[
        Seconds | None, msgspec.Meta(description="work in RUN, in seconds; unset: the domain's own, else 3600")
    ] = None
    collect_s: Annotated[
        Seconds | None,
        msgspec.Meta(description="fetching what a cut run left, in seconds; unset: the domain's own, else callback_s"),
    ] = None
    eval_s: Annotated[
        Seconds | None, msgspec.Meta(description="work in EVAL, in seconds; unset: the domain's own, else 900")
    ] = None
    total_s: Annotated[
        Seconds | None, msgspec.Meta(description="work in all three stages, in seconds; unset: only the stages' own")
    ] = None


BUDGETS = BudgetSettings(init_s=600.0, run_s=3600.0, eval_s=900.0)


class PipelineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[pipeline]``: the pools of the three stages, and the bounds that keep one job from hurting others."""

    init_workers: Annotated[Workers, msgspec.Meta(description="jobs in INIT at once")] = 16
    run_workers: Annotated[Workers, msgspec.Meta(description="jobs in RUN at once")] = 64
    eval_workers: Annotated[Workers, msgspec.Meta(description="jobs in EVAL at once")] = 16
    ahead: Annotated[
        Workers,
        msgspec.Meta(description="a stage takes no new job while this many wait for the next: bounds live sandboxes"),
    ] = 32
    max_jobs: Annotated[Count, msgspec.Meta(description="accepted jobs that have not ended; more get a 503")] = 100_000
    budgets: BudgetSettings = BudgetSettings()
    cancel_grace_s: Annotated[
        float,
        msgspec.Meta(ge=0.0, le=600.0, description="how long a cancelled handler may tidy up before it is abandoned"),
    ] = 1.0
    callback_s: Annotated[
        Seconds,
        msgspec.Meta(
            description="limit on final_result and each exception callback (run_exception: unless collect_s is set)"
        ),
    ] = 10.0
    close_s: Annotated[Seconds, msgspec.Meta(description="limit on closing what a job owns")] = 10.0
    keep_results: Annotated[Count, msgspec.Meta(description="finished results kept, by count")] = 10_000
    keep_results_mb: Annotated[Count, msgspec.Meta(description="finished results kept, by size in MiB")] = 1024
    keep_results_s: Annotated[Seconds, msgspec.Meta(description="finished results kept, by age in seconds")] = 3600.0
    keep_events: Annotated[Count, msgspec.Meta(description="latest events kept per job")] = 256
    stall_s: Annotated[
        Seconds, msgspec.Meta(description="a handler that blocks the event loop for longer is reported by name")
    ] = 0.5
