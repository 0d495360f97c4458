"""Tools: what the agent may call.

A tool has one schema (from its argument Struct), validates what the model wrote with an error that the model can act
on, and returns an observation. A tool never raises for what the model did; it raises ``SandboxFault`` when the sandbox
is lost.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import msgspec

from prorl.api.llm import ToolSchema
from prorl.api.sandbox import Sandbox


class Observation(msgspec.Struct, kw_only=True):
    """What a call gives back. ``done`` ends the agent's loop; ``answer`` is then its final answer, if it gave one."""

    text: str
    is_error: bool = False
    done: bool = False
    answer: str | None = None
    data: dict[str, Any] = {}


S = TypeVar("S", bound=msgspec.Struct)


class Tables(Protocol):
    def __call__(self, kind: type[S], /) -> S: ...


def defaults(kind: type[S], /) -> S:
    """For contexts that are made by hand: every table as if prorl.toml were empty."""
    return kind()


class ToolContext(msgspec.Struct, kw_only=True):
    """What a tool may use. ``timeout`` is the longest one call may take, in seconds. ``table(MyTable)`` is its plugin's
    table of prorl.toml (:meth:`~prorl.api.job.JobServices.table`)."""

    sandbox: Sandbox | None
    timeout: float
    output_chars: int = 30_000
    table: Tables = defaults


class Tool(Protocol):
    """``name`` is the one the model sees; ``aliases`` are other conventions' names for it."""

    @property
    def name(self) -> str: ...

    @property
    def aliases(self) -> tuple[str, ...]: ...

    @property
    def needs_sandbox(self) -> bool: ...

    def schema(self) -> ToolSchema: ...

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Observation: ...
