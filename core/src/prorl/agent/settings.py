"""What can be set about a tool-using agent: in prorl.toml under ``[handlers.<name>]``, and per job in ``settings``."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from prorl.api.names import RuntimeName, ToolName
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
    ``cut_reply``: what follows a reply that a limit of tokens cut short: the ``end``, or the model is told (``tell``).

    The context is budgeted turn by turn. ``min_reply_tokens``: room that every observation must leave for the reply to
    it. ``min_observation_tokens``: results of tools that do not fit are cut to what fits, if that is so much at least;
    else the context is full. ``context``: what happens then: the rollout may ``end`` with the work so far, or go on in
    a new segment with a shorter conversation (``compact``), ``max_compactions`` times at the most.

    ``runtime``: the sandbox runtime by name; ``None``: the server's choice.
    ``sandbox``: what to start, when one of the tools needs a sandbox.
    """

    tools: tuple[ToolName, ...] | None = None
    system_prompt: str | None = None
    max_turns: Count = 16
    max_reply_tokens: Count | None = None
    max_calls_per_turn: Count = 8
    tool_timeout_s: Seconds = 60.0
    observation_chars: Annotated[int, msgspec.Meta(ge=100)] = 30_000
    reminder: str = ""
    cut_reply: Literal["end", "tell"] = "end"
    min_reply_tokens: Count = 64
    min_observation_tokens: Count = 128
    context: Literal["end", "compact"] = "end"
    max_compactions: Annotated[int, msgspec.Meta(ge=0)] = 4
    runtime: RuntimeName | None = None
    sandbox: SandboxSpec = SandboxSpec()
