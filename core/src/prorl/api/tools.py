"""Tools: what the agent may call.

A tool has one schema (from its argument Struct), validates what the model wrote with an error that the model can act
on, and returns an observation. A tool never raises for what the model did; it raises ``SandboxFault`` when the sandbox
is lost.
"""

from __future__ import annotations

from typing import Any, Protocol

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


class ToolContext(msgspec.Struct, kw_only=True):
    """What a tool may use. ``timeout`` is the longest one call may take, in seconds."""

    sandbox: Sandbox | None
    timeout: float
    output_chars: int = 30_000


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
