"""One rollout server or several, behind the same two methods."""

from __future__ import annotations

from collections.abc import Sequence

from prorl.client import Fleet, FleetSettings, RolloutClient


def connect(servers: str | Sequence[str], *, concurrency: int) -> RolloutClient | Fleet:
    """An async context manager. Engines are registered by whoever moves the weights, so a fleet leaves them alone."""
    if isinstance(servers, str):
        return RolloutClient(servers, concurrency=concurrency)
    if len(servers) == 1:
        return RolloutClient(servers[0], concurrency=concurrency)
    return Fleet(servers, FleetSettings(shared=True))
