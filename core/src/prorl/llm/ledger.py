"""The token ledger: segments that only grow, and turns that are ranges of them.

A token is either *sampled* (mask 1, with the engine's logprob, at the place where the engine sampled it) or *rendered*
(mask 0). Appending is the only thing that can be done to a segment, so what was recorded once is never encoded again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from prorl.api.errors import ModelFault
from prorl.api.llm import Generation
from prorl.wire.trajectory import Segment, ToolCall, Trajectory, Turn, VersionSpan

RenderedRole = Literal["prompt", "tool", "user"]


class Ledger:
    """Keyword arguments name what produced the tokens; they go into the trajectory as they are."""

    def __init__(self, *, model: str | None = None, tokenizer: str | None = None, template: str | None = None) -> None:
        self._segments: list[Segment] = []
        self._turns: list[Turn] = []
        self._notes: list[str] = []
        self._model, self._tokenizer, self._template = model, tokenizer, template
        self._logprob_kind: str | None = None

    def __len__(self) -> int:
        """Tokens of the current segment."""
        return len(self._segments[-1].tokens) if self._segments else 0

    @property
    def ids(self) -> list[int]:
        """The current segment's tokens (a copy): what the next reply is sampled after."""
        return list(self._segments[-1].tokens) if self._segments else []

    def note(self, text: str) -> None:
        self._notes.append(text)

    def new_segment(self, ids: Sequence[int], *, role: RenderedRole = "prompt", text: str, note: str = "") -> None:
        """Begin a new stream with rendered ids: what to do when the old one cannot be extended."""
        self._segments.append(Segment(tokens=[], logprobs=[], loss_mask=[], versions=[]))
        self.append_rendered(ids, role=role, text=text)
        if note:
            self.note(f"segment {len(self._segments) - 1}: {note}")

    def append_rendered(self, ids: Sequence[int], *, role: RenderedRole, text: str, ms: float = 0.0) -> None:
        if not self._segments:
            self._segments.append(Segment(tokens=[], logprobs=[], loss_mask=[], versions=[]))
        turn = Turn(role=role, segment=0, start=0, end=0, text=text, ms=ms)
        self._append(turn, ids, [None] * len(ids), 0, [VersionSpan("", len(ids))])

    def append_sampled(
        self,
        generation: Generation,
        *,
        backend: str,
        policy_version: str,
        text: str,
        tool_calls: Sequence[ToolCall] = (),
        ms: float = 0.0,
    ) -> None:
        """Append one reply. Raises ``ModelFault`` (code ``bad_reply``), leaving the ledger as it was, when ids,
        logprobs and versions do not fit together."""
        ids, logprobs = generation.token_ids, generation.logprobs
        spans = generation.weight_spans or [VersionSpan("", len(ids))]
        spans = [VersionSpan(span.version or policy_version, span.count) for span in spans]
        if not self._segments:
            raise ModelFault("a reply before any prompt", code="bad_reply")
        if len(ids) != len(logprobs):
            raise ModelFault(f"{len(ids)} tokens but {len(logprobs)} logprobs", code="bad_reply")
        if not all(map(math.isfinite, logprobs)):
            raise ModelFault("a logprob is not finite", code="bad_reply")
        if sum(span.count for span in spans) != len(ids) or any(span.count < 0 for span in spans):
            raise ModelFault("the weight versions do not cover the reply", code="bad_reply")
        turn = Turn(
            role="assistant",
            segment=0,
            start=0,
            end=0,
            text=text,
            tool_calls=list(tool_calls),
            finish_reason=generation.finish,
            backend=backend,
            policy_version=policy_version,
            cached_tokens=generation.cached_tokens,
            ms=ms,
        )
        self._append(turn, ids, logprobs, 1, spans)
        if self._logprob_kind not in (None, generation.logprob_kind):
            self.note(f"logprobs changed from {self._logprob_kind} to {generation.logprob_kind}")
        self._logprob_kind = generation.logprob_kind

    def trajectory(self) -> Trajectory:
        """A snapshot: what is appended later does not reach it."""
        return Trajectory(
            segments=[
                Segment(
                    tokens=list(segment.tokens),
                    logprobs=list(segment.logprobs),
                    loss_mask=list(segment.loss_mask),
                    versions=list(segment.versions),
                )
                for segment in self._segments
            ],
            turns=list(self._turns),
            notes=list(self._notes),
            model=self._model,
            tokenizer=self._tokenizer,
            template=self._template,
            logprob_kind=self._logprob_kind,
        )

    def _append(
        self, turn: Turn, ids: Sequence[int], logprobs: Sequence[float | None], mask: int, spans: Sequence[VersionSpan]
    ) -> None:
        segment = self._segments[-1]
        turn.segment = len(self._segments) - 1
        turn.start = len(segment.tokens)
        turn.end = turn.start + len(ids)
        segment.tokens.extend(ids)
        segment.logprobs.extend(logprobs)
        segment.loss_mask.extend([mask] * len(ids))
        for span in spans:
            last = segment.versions[-1] if segment.versions else None
            if last is not None and last.version == span.version:
                segment.versions[-1] = VersionSpan(span.version, last.count + span.count)
            elif span.count:
                segment.versions.append(span)
        self._turns.append(turn)


def merge(trajectories: Sequence[Trajectory]) -> Trajectory:
    """The chats of one job as one trajectory: segments side by side, turns pointing at their own."""
    merged = Trajectory(segments=[], turns=[], notes=[])
    for trajectory in trajectories:
        offset = len(merged.segments)
        merged.segments += trajectory.segments
        merged.turns += [msgspec.structs.replace(turn, segment=turn.segment + offset) for turn in trajectory.turns]
        merged.notes += trajectory.notes
        merged.trainable = merged.trainable and trajectory.trainable
        for name in ("model", "tokenizer", "template", "logprob_kind"):
            mine, theirs = getattr(merged, name), getattr(trajectory, name)
            if mine is None:
                setattr(merged, name, theirs)
            elif theirs not in (None, mine):
                merged.notes.append(f"segments from {offset} on: {name} {theirs}")
    return merged
