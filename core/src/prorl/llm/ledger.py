"""The token ledger of one job: segments that only grow, and turns that are ranges of them.

A token is either *sampled* (mask 1, with the engine's logprob, at the place where the engine sampled it) or *rendered*
(mask 0). Appending is the only thing that can be done to a segment, so what was recorded once is never encoded again.

A :class:`Stream` is one conversation's hold on one segment. Streams of several conversations grow side by side; turns
stand in the order in which they were appended.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from prorl.api.errors import ModelFault
from prorl.api.llm import Generation
from prorl.wire.trajectory import Segment, SegmentOrigin, ToolCall, Trajectory, Turn, VersionSpan

RenderedRole = Literal["prompt", "tool", "user"]


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What produced the tokens of a segment; goes into the trajectory."""

    model: str | None = None
    tokenizer: str | None = None
    template: str | None = None


class Ledger:
    """All segments of a job. :meth:`trajectory` is a snapshot."""

    def __init__(self) -> None:
        self._segments: list[Segment] = []
        self._turns: list[Turn] = []
        self._notes: list[str] = []
        self._source: dict[str, Any] = {}
        self._trainable = True

    def note(self, text: str) -> None:
        self._notes.append(text)

    def not_trainable(self, why: str) -> None:
        """Tokens or logprobs of this trajectory did not come from an engine."""
        if self._trainable:
            self.note(f"not trainable: {why}")
        self._trainable = False

    def open(
        self,
        ids: Sequence[int],
        *,
        text: str,
        source: Source | None = None,
        origin: SegmentOrigin = "open",
        parent: Stream | None = None,
        agent: str = "",
    ) -> Stream:
        """Begin a segment with a rendered prompt."""
        stream = self._begin(origin, parent, 0, agent)
        for name, value in msgspec.structs.asdict(source or Source()).items():
            self._name(stream, name, value)
        stream.append_rendered(ids, role="prompt", text=text)
        return stream

    def branch(self, parent: Stream, length: int) -> Stream:
        """Begin a segment with the first ``length`` tokens of ``parent``: context here, trained on there."""
        stream = self._begin("branch", parent, length, parent.segment.agent)
        stream.append_shared(parent.segment.tokens[:length])
        return stream

    def trajectory(self) -> Trajectory:
        """A snapshot: what is appended later does not reach it."""
        return Trajectory(
            segments=[
                msgspec.structs.replace(
                    segment,
                    tokens=list(segment.tokens),
                    logprobs=list(segment.logprobs),
                    loss_mask=list(segment.loss_mask),
                    versions=list(segment.versions),
                )
                for segment in self._segments
            ],
            turns=list(self._turns),
            notes=list(self._notes),
            trainable=self._trainable,
            **self._source,
        )

    def _begin(self, origin: SegmentOrigin, parent: Stream | None, shared: int, agent: str) -> Stream:
        segment = Segment(
            tokens=[],
            logprobs=[],
            loss_mask=[],
            versions=[],
            origin=origin,
            parent=None if parent is None else parent.index,
            shared=shared,
            agent=agent,
        )
        self._segments.append(segment)
        return Stream(self, segment, len(self._segments) - 1)

    def _name(self, stream: Stream, name: str, value: str | None) -> None:
        """A trajectory names its first source; what differs from it is noted."""
        if value is not None and self._source.setdefault(name, value) != value:
            self.note(f"segment {stream.index}: {name} {value}")

    def _record(self, turn: Turn) -> None:
        self._turns.append(turn)

    def _logprobs_are(self, kind: str) -> None:
        if (known := self._source.get("logprob_kind")) not in (None, kind):
            self.note(f"logprobs changed from {known} to {kind}")
        self._source["logprob_kind"] = kind


class Stream:
    """One segment, and the only way to append to it. Made by :class:`Ledger`."""

    def __init__(self, ledger: Ledger, segment: Segment, index: int) -> None:
        self._ledger = ledger
        self.segment = segment
        self.index = index

    def __len__(self) -> int:
        return len(self.segment.tokens)

    @property
    def ids(self) -> list[int]:
        """The tokens so far (a copy): what the next reply is sampled after."""
        return list(self.segment.tokens)

    def append_shared(self, ids: Sequence[int]) -> None:
        """Tokens that the parent segment holds already; they belong to no turn of this one."""
        self._extend(ids, [None] * len(ids), 0, [VersionSpan("", len(ids))])

    def append_rendered(self, ids: Sequence[int], *, role: RenderedRole, text: str, ms: float = 0.0) -> None:
        start = len(self)
        self._extend(ids, [None] * len(ids), 0, [VersionSpan("", len(ids))])
        self._ledger._record(Turn(role=role, segment=self.index, start=start, end=len(self), text=text, ms=ms))  # noqa: SLF001

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
        if len(ids) != len(logprobs):
            raise ModelFault(f"{len(ids)} tokens but {len(logprobs)} logprobs", code="bad_reply")
        if not all(map(math.isfinite, logprobs)):
            raise ModelFault("a logprob is not finite", code="bad_reply")
        if sum(span.count for span in spans) != len(ids) or any(span.count < 0 for span in spans):
            raise ModelFault("the weight versions do not cover the reply", code="bad_reply")
        start = len(self)
        self._extend(ids, logprobs, 1, spans)
        turn = Turn(
            role="assistant",
            segment=self.index,
            start=start,
            end=len(self),
            text=text,
            tool_calls=list(tool_calls),
            finish_reason=generation.finish,
            backend=backend,
            policy_version=policy_version,
            cached_tokens=generation.cached_tokens,
            ms=ms,
        )
        self._ledger._record(turn)  # noqa: SLF001 - a stream is the ledger's own hand
        self._ledger._logprobs_are(generation.logprob_kind)  # noqa: SLF001

    def _extend(
        self, ids: Sequence[int], logprobs: Sequence[float | None], mask: int, spans: Sequence[VersionSpan]
    ) -> None:
        segment = self.segment
        segment.tokens.extend(ids)
        segment.logprobs.extend(logprobs)
        segment.loss_mask.extend([mask] * len(ids))
        for span in spans:
            last = segment.versions[-1] if segment.versions else None
            if last is not None and last.version == span.version:
                segment.versions[-1] = VersionSpan(span.version, last.count + span.count)
            elif span.count:
                segment.versions.append(span)
