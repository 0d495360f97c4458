"""The certificate of a trajectory: chained hashes that the server makes while the trajectory grows.

Every turn is a link, which covers the turn, its tokens, logprobs, mask and versions, all tokens before it in its
segment, and the link before. The seal covers the last link and what is said of the trajectory as a whole; a signature
covers the seal and the outcome. ``core/docs/certificate.md`` has the recipe for other languages, and says what each
proves. The server's ledger and everybody who checks use the functions of this module.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

from prorl.wire.results import RolloutResult
from prorl.wire.trajectory import Certificate, Segment, ToolCall, Trajectory, Turn, VersionSpan

SCHEME = "prorl-chain-1"
SHORTEST_KEY = 16
START = hashlib.sha256(SCHEME.encode()).digest()


class Part(msgspec.Struct, frozen=True):
    """What one turn holds of its segment's lists."""

    tokens: Sequence[int]
    logprobs: Sequence[float | None]
    loss_mask: Sequence[int]
    versions: Sequence[VersionSpan]


class Runs:
    """The version runs of a segment, by place: finding those of a turn does not walk through all of them."""

    def __init__(self, segment: Segment) -> None:
        self._runs = segment.versions
        self._starts = list(accumulate((run.count for run in segment.versions), initial=0))

    def within(self, start: int, end: int) -> list[VersionSpan]:
        """Those of the tokens ``start`` to ``end``, cut at both ends."""
        found = []
        for place in range(max(bisect_right(self._starts, start) - 1, 0), len(self._runs)):
            run, at = self._runs[place], self._starts[place]
            if at >= end:
                break
            if (count := min(at + run.count, end) - max(at, start)) > 0:
                found.append(VersionSpan(run.version, count))
        return found


def packed_tokens(tokens: Sequence[int]) -> bytes:
    """Raises ``struct.error`` for what is no unsigned number of 32 bits."""
    return struct.pack(f"<{len(tokens)}I", *tokens)


def link(previous: bytes, turn: Turn, segment: Segment, before: bytes, part: Part) -> bytes:
    """``before`` is the SHA-256 of the packed tokens that stand before the turn in its segment."""
    logprobs = [math.nan if logprob is None else logprob for logprob in part.logprobs]
    record = [
        "turn",
        previous,
        [turn.segment, segment.origin, segment.parent, segment.shared, segment.agent],
        [turn.start, turn.end, turn.role, turn.text, [_call(call) for call in turn.tool_calls]],
        [turn.finish_reason, turn.backend, turn.policy_version, turn.cached_tokens, float(turn.ms)],
        {name: float(value) for name, value in turn.sampling.items()},
        before,
        packed_tokens(part.tokens),
        struct.pack(f"<{len(logprobs)}d", *logprobs),
        bytes(part.loss_mask),
        [[run.version, run.count] for run in part.versions],
    ]
    return hashlib.sha256(encode(record)).digest()


def seal(last: bytes, trajectory: Trajectory) -> bytes:
    segments = [
        [segment.origin, segment.parent, segment.shared, segment.agent, len(segment.tokens)]
        for segment in trajectory.segments
    ]
    sources = [trajectory.model, trajectory.tokenizer, trajectory.template, trajectory.logprob_kind]
    record = ["seal", last, sources, trajectory.trainable, trajectory.notes, segments]
    return hashlib.sha256(encode(record)).digest()


def certify(trajectory: Trajectory) -> Certificate:
    """The whole chain anew, for a trajectory as it stands (the server makes it turn by turn). Raises ``ValueError`` for
    values that have no place in a trajectory."""
    links = list(chain(trajectory))
    return Certificate(scheme=SCHEME, links=[each.hex() for each in links], seal=_seal_hex(links, trajectory))


def chain(trajectory: Trajectory) -> Iterator[bytes]:
    """The links, one per turn. Raises ``ValueError`` at a turn that cannot be hashed."""
    previous = START
    hashes = [(hashlib.sha256(), 0) for _ in trajectory.segments]
    runs = [Runs(segment) for segment in trajectory.segments]
    for turn in trajectory.turns:
        if not 0 <= turn.segment < len(hashes):
            raise ValueError(f"there is no segment {turn.segment}")
        segment = trajectory.segments[turn.segment]
        hashed, length = hashes[turn.segment]
        if turn.start < length:
            raise ValueError(f"it begins at token {turn.start}, before the end of the turn before it ({length})")
        try:
            hashed.update(packed_tokens(segment.tokens[length : turn.start]))
            part = Part(
                segment.tokens[turn.start : turn.end],
                segment.logprobs[turn.start : turn.end],
                segment.loss_mask[turn.start : turn.end],
                runs[turn.segment].within(turn.start, turn.end),
            )
            previous = link(previous, turn, segment, hashed.digest(), part)
            hashed.update(packed_tokens(part.tokens))
        except (struct.error, OverflowError, TypeError, RecursionError) as error:
            raise ValueError(str(error)) from error
        hashes[turn.segment] = hashed, turn.start + len(part.tokens)
        yield previous


def sign(key: bytes, result: RolloutResult) -> RolloutResult:
    """The same result with a signed certificate (a new one, where nothing was sampled and it has none)."""
    trajectory = result.trajectory
    certificate = trajectory.certificate or certify(trajectory)
    certificate = msgspec.structs.replace(certificate, signature=signature(key, result, certificate))
    return msgspec.structs.replace(result, trajectory=msgspec.structs.replace(trajectory, certificate=certificate))


def signature(key: bytes, result: RolloutResult, certificate: Certificate) -> str:
    record = [
        "result",
        certificate.scheme,
        bytes.fromhex(certificate.seal),
        [result.job_id, result.group_id, result.instance_id, result.handler, result.server],
        [result.status, result.stage, None if result.error is None else [result.error.kind, result.error.code]],
        [float(result.reward), result.resolved, result.mask_sample, result.policy_versions],
    ]
    return hmac.new(key, encode(record), hashlib.sha256).hexdigest()


def read_key(path: Path) -> bytes:
    """The key in a file: its bytes, without white space around them. Raises ``ValueError`` saying what is wrong."""
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise ValueError(f"cannot read the key file {path}: {error.strerror}") from error
    if len(key) < SHORTEST_KEY:
        raise ValueError(f"the key in {path} has {len(key)} bytes, fewer than {SHORTEST_KEY}: openssl rand -hex 32")
    return key


def encode(value: Any) -> bytes:
    """One spelling per value: what is hashed. Raises ``TypeError`` for what JSON does not have (but bytes it takes)."""
    parts: list[bytes] = []
    _encode(value, parts)
    return b"".join(parts)


def _encode(value: Any, parts: list[bytes]) -> None:
    match value:
        case None:
            parts.append(b"n")
        case bool():
            parts.append(b"t" if value else b"f")
        case int():
            parts.append(b"i%de" % value)
        case float():
            parts.append(b"d" + struct.pack("<d", value))
        case bytes():
            parts += (b"b%d:" % len(value), value)
        case str():
            text = value.encode("utf-8", "surrogatepass")
            parts += (b"s%d:" % len(text), text)
        case list() | tuple():
            parts.append(b"l")
            for item in value:
                _encode(item, parts)
            parts.append(b"e")
        case dict():
            parts.append(b"m")
            for key in sorted(value, key=lambda key: key.encode("utf-8", "surrogatepass")):
                _encode(key, parts)
                _encode(value[key], parts)
            parts.append(b"e")
        case _:
            raise TypeError(f"{type(value).__name__} has no place in a trajectory")


def _call(call: ToolCall) -> list[Any]:
    return [call.name, call.arguments, call.error]


def _seal_hex(links: Sequence[bytes], trajectory: Trajectory) -> str:
    return seal(links[-1] if links else START, trajectory).hex()
