"""What travels over HTTP: msgspec Structs shared by server, client and trainers.

Requests forbid unknown fields (a typo is an error); results may gain fields (a client ignores what it does not know).
"""

from prorl.wire.backends import BackendSpec, BackendStatus, ClearRequest, PoolStatus
from prorl.wire.jobs import STAGES, Budgets, CancelRequest, JobRequest, StageName, StopRequest
from prorl.wire.rendering import RenderingParams
from prorl.wire.results import (
    FaultKind,
    JobEvent,
    JobState,
    JobView,
    RolloutError,
    RolloutResult,
    StageTiming,
    Status,
    Timing,
)
from prorl.wire.sampling import SamplingParams
from prorl.wire.service import (
    CancelReply,
    Health,
    PluginReport,
    PluginState,
    Problem,
    ServiceStatus,
    StageStatus,
    Switched,
)
from prorl.wire.trajectory import (
    Certificate,
    Finish,
    Segment,
    SegmentOrigin,
    ToolCall,
    Trajectory,
    Turn,
    VersionSpan,
)

__all__ = [
    "STAGES",
    "BackendSpec",
    "BackendStatus",
    "Budgets",
    "CancelReply",
    "CancelRequest",
    "Certificate",
    "ClearRequest",
    "FaultKind",
    "Finish",
    "Health",
    "JobEvent",
    "JobRequest",
    "JobState",
    "JobView",
    "PluginReport",
    "PluginState",
    "PoolStatus",
    "Problem",
    "RenderingParams",
    "RolloutError",
    "RolloutResult",
    "SamplingParams",
    "Segment",
    "SegmentOrigin",
    "ServiceStatus",
    "StageName",
    "StageStatus",
    "StageTiming",
    "Status",
    "StopRequest",
    "Switched",
    "Timing",
    "ToolCall",
    "Trajectory",
    "Turn",
    "VersionSpan",
]
