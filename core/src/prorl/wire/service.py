"""What the server says of itself, and how it says no (RFC 9457 problem details)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from prorl.wire.backends import PoolStatus

PluginState = Literal["active", "incompatible", "import-failed", "invalid", "conflict"]


class Problem(msgspec.Struct, kw_only=True, omit_defaults=True, rename={"kind": "type"}):
    """``application/problem+json``. ``detail`` says what to do about it; ``extra`` holds machine-readable facts."""

    title: str
    status: int
    detail: str
    kind: str = "about:blank"
    instance: str | None = None
    extra: dict[str, Any] = {}


class PluginReport(msgspec.Struct, kw_only=True):
    """One entry point: what it is, whether it works, why not, and what it offers (hook name -> record names)."""

    name: str
    distribution: str
    version: str
    state: PluginState
    reason: str | None = None
    offers: dict[str, list[str]] = {}


class StageStatus(msgspec.Struct, kw_only=True):
    workers: int
    busy: int
    queued: int


class ServiceStatus(msgspec.Struct, kw_only=True):
    """``GET /status``. ``accepting`` is false after ``/stop``; ``loop_stalls`` counts, by handler, blocked loops;
    ``abandoned``, by handler, calls that ignored their cancellation and were left behind."""

    server: str
    version: str
    accepting: bool
    uptime_s: float
    jobs: dict[str, int]
    stages: dict[str, StageStatus]
    pool: PoolStatus
    loop_stalls: dict[str, int] = {}
    abandoned: dict[str, int] = {}


class Switched(ServiceStatus, kw_only=True):
    """``POST /start`` and ``/stop``: the status afterwards; ``changed`` is false when it was so already."""

    changed: bool


class CancelReply(msgspec.Struct, kw_only=True):
    """``POST /cancel``: ``cancelled`` by this call (not those that had ended), and ids that are ``unknown``."""

    cancelled: list[str]
    unknown: list[str] = []


class Health(msgspec.Struct, kw_only=True):
    status: Literal["ok"]
    version: str
