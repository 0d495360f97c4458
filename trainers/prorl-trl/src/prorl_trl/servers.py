"""One rollout server or several, behind the same two methods."""

from __future__ import annotations

from collections.abc import Sequence

from prorl.client import Fleet, FleetSettings, RolloutClient


def connect(servers: str | Sequence[str], *, concurrency: int) -> RolloutClient | Fleet:
    """An async context manager. Engines are registered by whoever moves the weights, so a fleet leaves them alone."""
    urls = [servers] if isinstance(servers, str) else servers
    return (
        RolloutClient(urls[0], concurrency=concurrency) if len(urls) == 1 else Fleet(urls, FleetSettings(shared=True))
    )
