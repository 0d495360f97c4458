"""A trajectory: what the policy saw and said, as tokens.

A *segment* is a token stream that only ever grew: a policy-gradient trainer can use each segment as one sample. A
*turn* is a range of one segment, either one model reply or one batch of rendered messages. The paper's per-message
``input_ids`` / ``output_ids`` are views of it, ``tokens[:start]`` and ``tokens[start:end]``, so the payload grows
linearly with the conversation and no two fields can disagree.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Finish = Literal["stop", "length", "abort"]
SegmentOrigin = Literal["open", "compaction", "rewrite", "branch"]


class VersionSpan(msgspec.Struct, frozen=True, array_like=True):
    """``count`` consecutive tokens of one policy version (run-length form)."""

    version: str
    count: int


class Segment(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Parallel lists over one token stream, all of the same length.

    ``loss_mask`` is 1 exactly for tokens that an engine sampled at that place. ``logprobs`` is the engine's natural-log
    probability for those and ``None`` elsewhere. ``versions`` run-length codes the policy version of every token;
    rendered tokens carry the empty version ``""``.

    ``origin`` says why the segment began: a conversation was opened, its context was compacted, the template rewrote
    its history, or it branched off. ``parent`` is the segment it goes on from. ``shared`` counts leading tokens copied
    from the parent: they are context here (mask 0, no logprob, version ``""``) and are trained on there, once.
    ``agent`` names the sub-agent whose conversation it is (``""``: the main one).
    """

    tokens: list[int]
    logprobs: list[float | None]
    loss_mask: list[int]
    versions: list[VersionSpan]
    origin: SegmentOrigin = "open"
    parent: int | None = None
    shared: int = 0
    agent: str = ""


class ToolCall(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A call that the model wrote. ``error`` says why it could not be used (then ``arguments`` may be empty)."""

    name: str
    arguments: dict[str, Any] = {}
    error: str | None = None


class Turn(msgspec.Struct, kw_only=True, omit_defaults=True):
    """``segments[segment].tokens[start:end]``: one reply (role ``assistant``) or one batch of rendered messages.

    ``ms`` is wall time: of the model call for a reply, of the tools for a ``tool`` turn. ``sampling`` names what made
    the distribution of a reply another one than the policy's own (``{"temperature": 0.7}``): parameters that were not
    neutral (temperature 1, top_p 1, top_k 0, min_p 0).
    """

    role: Literal["prompt", "assistant", "tool", "user"]
    segment: int
    start: int
    end: int
    text: str
    tool_calls: list[ToolCall] = []
    finish_reason: Finish | None = None
    backend: str | None = None
    policy_version: str | None = None
    sampling: dict[str, float] = {}
    cached_tokens: int | None = None
    ms: float = 0.0


class Certificate(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Chained hashes of a trajectory, made while it grew: ``links[i]`` (sha256, hex) covers turn ``i`` with its tokens,
    logprobs, mask and versions, every token before it in its segment, and ``links[i - 1]``. ``seal`` covers the last
    link and the trajectory's other fields. ``scheme`` names the exact recipe. ``signature`` is the server's HMAC over
    the seal and the result's outcome, where the server was given a key.
    """

    scheme: str
    links: list[str]
    seal: str
    signature: str | None = None


class Trajectory(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Segments, turns, and the names of what produced them.

    ``trainable`` is false when the token ids or logprobs did not come from an engine (a chat-only backend).
    ``tokenizer`` and ``template`` name the source and digest of what rendered the prompt. ``certificate`` is what
    ``prorl verify`` checks.
    """

    segments: list[Segment] = []
    turns: list[Turn] = []
    model: str | None = None
    tokenizer: str | None = None
    template: str | None = None
    logprob_kind: str | None = None
    trainable: bool = True
    notes: list[str] = []
    certificate: Certificate | None = None

    def input_ids(self, turn: Turn) -> list[int]:
        """The paper's ``input_ids`` of a turn: everything before it in its segment."""
        return self.segments[turn.segment].tokens[: turn.start]

    def output_ids(self, turn: Turn) -> list[int]:
        """The paper's ``output_ids`` of a turn: the turn's own tokens."""
        return self.segments[turn.segment].tokens[turn.start : turn.end]
