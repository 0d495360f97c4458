"""The token ledger of one job: segments that only grow, and turns that are ranges of them.

A token is either *sampled* (mask 1, with the engine's logprob, at the place where the engine sampled it) or *rendered*
(mask 0). Appending is the only thing that can be done to a segment, so what was recorded once is never encoded again.

A :class:`Stream` is one conversation's hold on one segment. Streams of several conversations grow side by side; turns
stand in the order in which they were appended. Each turn is hashed as it is appended, from what was sent to the engine
and what came back (:mod:`prorl.wire.certificate`), not from what the lists hold later.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from prorl.api.errors import ModelFault
from prorl.api.llm import Generation
from prorl.llm.rendering.scaffold import clean
from prorl.llm.rendering.source import RenderedRole, Source
from prorl.wire.certificate import SCHEME, START, Part, link, packed_tokens, seal
from prorl.wire.sampling import SamplingParams
from prorl.wire.trajectory import Certificate, Segment, SegmentOrigin, ToolCall, Trajectory, Turn, VersionSpan

_NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}


class Ledger:
    """All segments of a job. :meth:`trajectory` is a snapshot."""

    def __init__(self) -> None:
        self._segments: list[Segment] = []
        self._turns: list[Turn] = []
        self._notes: list[str] = []
        self._source: dict[str, Any] = {}
        self._trainable = True
        self._links = [START]

    def note(self, text: str) -> None:
        self._notes.append(clean(text))

    def not_trainable(self, why: str) -> None:
        """Tokens or logprobs of this trajectory did not come from an engine."""
        if self._trainable:
            self.note(f"not trainable: {why}")
        self._trainable = False

    def open(
        self,
        ids: Sequence[int] | None,
        *,
        text: str,
        source: Source | None = None,
        origin: SegmentOrigin = "open",
        parent: Stream | None = None,
        agent: str = "",
    ) -> Stream:
        """Begin a segment with a rendered prompt (``None``: it is appended once the engine has told its ids)."""
        stream = self._begin(origin, parent, 0, agent)
        for name, value in msgspec.structs.asdict(source or Source()).items():
            self._name(stream, name, value)
        if ids is not None:
            stream.append_rendered(ids, role="prompt", text=text)
        return stream

    def branch(self, parent: Stream, length: int) -> Stream:
        """Begin a segment with the first ``length`` tokens of ``parent``: context here, trained on there."""
        stream = self._begin("branch", parent, length, parent.segment.agent)
        stream.append_shared(parent.segment.tokens[:length])
        return stream

    def trajectory(self) -> Trajectory:
        """A snapshot: what is appended later does not reach it."""
        trajectory = Trajectory(
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
        trajectory.certificate = Certificate(
            scheme=SCHEME,
            links=[each.hex() for each in self._links[1:]],
            seal=seal(self._links[-1], trajectory).hex(),
        )
        return trajectory

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

    def _record(self, turn: Turn, segment: Segment, before: bytes, part: Part) -> None:
        self._links.append(link(self._links[-1], turn, segment, before, part))
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
        self._hash = hashlib.sha256()

    def __len__(self) -> int:
        return len(self.segment.tokens)

    @property
    def ids(self) -> list[int]:
        """The tokens so far (a copy): what the next reply is sampled after."""
        return list(self.segment.tokens)

    def append_shared(self, ids: Sequence[int]) -> None:
        """Tokens that the parent segment holds already; they belong to no turn of this one."""
        self._extend(_rendered(ids), packed_tokens(ids))

    def append_rendered(self, ids: Sequence[int], *, role: RenderedRole, text: str, ms: float = 0.0) -> None:
        start, before = len(self), self._hash.digest()
        part, packed = _rendered(ids), packed_tokens(ids)
        turn = Turn(role=role, segment=self.index, start=start, end=start + len(ids), text=text, ms=ms)
        self._ledger._record(turn, self.segment, before, part)  # noqa: SLF001 - a stream is the ledger's own hand
        self._extend(part, packed)

    def append_sampled(
        self,
        generation: Generation,
        *,
        after: Sequence[int],
        backend: str,
        policy_version: str,
        text: str,
        tool_calls: Sequence[ToolCall] = (),
        sampling: SamplingParams | None = None,
        ms: float = 0.0,
    ) -> None:
        """Append one reply. ``after`` is what was sent to the engine.

        Raises ``ModelFault``, leaving the ledger as it was: with code ``bad_reply`` when ids, logprobs and versions do
        not fit together, with code ``wrong_prompt`` when the reply was sampled after anything but this stream.
        """
        if (after if isinstance(after, list) else list(after)) != self.segment.tokens:
            raise ModelFault(
                f"the reply was sampled after {len(after)} tokens that are not the {len(self)} of segment {self.index}",
                code="wrong_prompt",
            )
        part, packed = _sampled(generation, policy_version)
        start, before = len(self), self._hash.digest()
        turn = Turn(
            role="assistant",
            segment=self.index,
            start=start,
            end=start + len(part.tokens),
            text=text,
            tool_calls=_as_json(tool_calls),
            finish_reason=generation.finish,
            backend=backend,
            policy_version=policy_version,
            sampling=_unlike_the_policy(sampling or SamplingParams()),
            cached_tokens=generation.cached_tokens,
            ms=ms,
        )
        try:
            self._ledger._record(turn, self.segment, before, part)  # noqa: SLF001
        except RecursionError as error:
            raise ModelFault("the arguments of a tool call are nested too deeply", code="bad_reply") from error
        self._ledger._logprobs_are(generation.logprob_kind)  # noqa: SLF001
        self._extend(part, packed)

    def _extend(self, part: Part, packed: bytes) -> None:
        segment = self.segment
        segment.tokens.extend(part.tokens)
        segment.logprobs.extend(part.logprobs)
        segment.loss_mask.extend(part.loss_mask)
        _join(segment.versions, part.versions)
        self._hash.update(packed)


def _rendered(ids: Sequence[int]) -> Part:
    return Part(ids, [None] * len(ids), [0] * len(ids), [VersionSpan("", len(ids))] if ids else [])


def _sampled(generation: Generation, policy_version: str) -> tuple[Part, bytes]:
    ids, logprobs = generation.token_ids, generation.logprobs
    spans = generation.weight_spans or [VersionSpan("", len(ids))]
    spans = [VersionSpan(span.version or policy_version, span.count) for span in spans]
    if len(ids) != len(logprobs):
        raise ModelFault(f"{len(ids)} tokens but {len(logprobs)} logprobs", code="bad_reply")
    if not all(map(math.isfinite, logprobs)) or max(logprobs, default=0.0) > 0.0:
        raise ModelFault("a logprob is above 0 or not finite", code="bad_reply")
    if sum(span.count for span in spans) != len(ids) or any(span.count < 0 for span in spans):
        raise ModelFault("the weight versions do not cover the reply", code="bad_reply")
    try:
        packed = packed_tokens(ids)
    except struct.error as error:
        raise ModelFault(f"a token id is no unsigned number of 32 bits: {error}", code="bad_reply") from error
    runs: list[VersionSpan] = []
    _join(runs, spans)
    return Part(ids, logprobs, [1] * len(ids), runs), packed


def _join(runs: list[VersionSpan], more: Sequence[VersionSpan]) -> None:
    """Append; neighbours of one version become one run."""
    for span in more:
        if runs and runs[-1].version == span.version:
            runs[-1] = VersionSpan(span.version, runs[-1].count + span.count)
        elif span.count:
            runs.append(span)


def _as_json(calls: Sequence[ToolCall]) -> list[ToolCall]:
    """As whoever reads the trajectory will see them: that is what the certificate must cover."""
    try:
        return msgspec.json.decode(msgspec.json.encode(list(calls)), type=list[ToolCall])
    except (TypeError, ValueError, RecursionError) as error:
        raise ModelFault(f"a tool call has arguments that are no JSON: {error}", code="bad_reply") from error


def _unlike_the_policy(sampling: SamplingParams) -> dict[str, float]:
    return {
        name: float(getattr(sampling, name)) for name, value in _NEUTRAL.items() if getattr(sampling, name) != value
    }
