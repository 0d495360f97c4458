"""A job as a handler sees it: the request, the services, and what the stages hand on.

Data flows one way: ``init`` fills ``runtime``, ``metadata`` and ``config``; ``run`` fills ``run_output``; ``eval``
fills ``eval_output``; ``final_result`` reads them all.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import msgspec

from prorl.api.capture import Capture
from prorl.api.llm import Chat
from prorl.api.sandbox import Sandbox, SandboxSpec
from prorl.api.tools import Tool
from prorl.wire.jobs import JobRequest

S = TypeVar("S", bound=msgspec.Struct)


class JobServices(Protocol):
    """What the core does for a handler, bound to one job."""

    async def sandbox(self, spec: SandboxSpec, *, runtime: str | None = None) -> Sandbox:
        """Start a sandbox that dies with the job at the latest. ``runtime=None``: the server's choice."""
        ...

    def chat(self, agent: str = "") -> Chat:
        """A new conversation with the policy, pinned to the job's backend. All chats end up in the trajectory, as
        segments of their own; ``agent`` names a sub-agent's."""
        ...

    def capture(self, *, max_calls: int | None = None) -> Capture:
        """The door for an agent that speaks HTTP (OpenAI's or Anthropic's): what it says and hears becomes the job's
        trajectory. One per job; ``max_calls`` bounds the replies it may have."""
        ...

    def tools(self, names: tuple[str, ...]) -> list[Tool]:
        """Tools by name (aliases count). Raises ``ConfigError`` for a name that no plugin offers."""
        ...

    def table(self, kind: type[S]) -> S:
        """A plugin's own table of prorl.toml, by the type that its ``SettingsRecord`` names; its defaults where it is
        absent. It is the word of the server's owner: unlike ``job.settings``, no request changes any of it. Raises
        ``ConfigError`` for a type that no plugin in use has declared."""
        ...

    def emit(self, kind: str, **data: Any) -> None:
        """An event for the job's watchers (``GET /jobs/{id}/events``)."""
        ...

    def waiting(self) -> AbstractContextManager[None]:
        """The job's clock stands still inside the block, for a turn at what only so many may use at once. Whoever has
        the turn must be bounded by a clock that runs."""
        ...

    def spend(self, *, model_s: float = 0.0, tools_s: float = 0.0) -> None:
        """Account time to the model or the tools (shown in the result's timing)."""
        ...


@dataclass(kw_only=True, slots=True)
class Job:
    """One rollout. ``settings`` is the handler's own Struct, with the job's overrides applied and checked."""

    id: str
    request: JobRequest
    handler: str
    settings: msgspec.Struct | None
    services: JobServices
    exit_stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    runtime: Sandbox | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    run_output: dict[str, Any] = field(default_factory=dict)
    eval_output: dict[str, Any] = field(default_factory=dict)

    @property
    def instance(self) -> dict[str, Any]:
        return self.request.instance
