"""What can be set about a tool-using agent: in prorl.toml under ``[handlers.<name>]``, and per job in ``settings``."""

from __future__ import annotations

from typing import Annotated

import msgspec

from prorl.api.sandbox import SandboxSpec
from prorl.wire.jobs import Seconds

Count = Annotated[int, msgspec.Meta(ge=1)]


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of every :class:`~prorl.agent.ToolAgentHandler`; a domain inherits from it to add its own.

    ``tools`` and ``system_prompt``: ``None`` takes the domain's own; ``()`` and ``""`` mean none at all.
    ``max_turns``: model replies per rollout.
    ``max_reply_tokens``: bounds one reply, below the job's ``sampling_params.max_tokens``.
    ``max_calls_per_turn``: calls of one reply that are run; the rest is answered with an error.
    ``tool_timeout_s``: the longest one tool call may take.
    ``observation_chars``: the longest one observation may be; what is beyond is cut from its middle.
    ``reminder``: sent once when a reply calls no tool; empty: such a reply is the final answer.
    ``runtime``: the sandbox runtime by name; ``None``: the server's choice.
    ``sandbox``: what to start, when one of the tools needs a sandbox.
    """

    tools: tuple[str, ...] | None = None
    system_prompt: str | None = None
    max_turns: Count = 16
    max_reply_tokens: Count | None = None
    max_calls_per_turn: Count = 8
    tool_timeout_s: Seconds = 60.0
    observation_chars: Annotated[int, msgspec.Meta(ge=100)] = 30_000
    reminder: str = ""
    runtime: str | None = None
    sandbox: SandboxSpec = SandboxSpec()
