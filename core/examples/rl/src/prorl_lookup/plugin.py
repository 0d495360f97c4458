"""What this distribution offers to the server."""

from __future__ import annotations

from prorl.agent import AgentSettings
from prorl.api import DemoRecord, HandlerRecord, hookimpl
from prorl_lookup import demo
from prorl_lookup.task import LookupHandler


@hookimpl
def prorl_agent_handlers() -> list[HandlerRecord]:
    return [
        HandlerRecord(
            name="lookup",
            factory=LookupHandler,
            summary="look a key up in the sandbox and say its value",
            settings=AgentSettings,
        )
    ]


@hookimpl
def prorl_demos() -> list[DemoRecord]:
    return [demo.record()]
