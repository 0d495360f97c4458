"""Is a trajectory what it claims to be? Pure checks, for trainers and for ``prorl verify``.

::

    for finding in check_result(result, key=None):
        print(finding)

*Structure* is what holds in every trajectory, certified or not. *Chain* recomputes the certificate. No count or range
of a file is believed before it has been compared with what is really there.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Iterator
from itertools import islice
from typing import Literal

import msgspec

from prorl.wire.certificate import SCHEME, START, Runs, chain, seal, signature
from prorl.wire.results import RolloutResult
from prorl.wire.trajectory import Certificate, Segment, Trajectory, Turn

FindingCode = Literal[
    "lengths",
    "bad_token",
    "bad_mask",
    "bad_logprob",
    "bad_version",
    "bad_turn",
    "bad_branch",
    "bad_reward",
    "no_certificate",
    "unknown_scheme",
    "broken_link",
    "broken_seal",
    "no_signature",
    "wrong_signature",
    "other_text",  # these two need a tokenizer and an engine: `prorl verify` finds them
    "other_logprob",
]


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that is not as it must be, and where."""

    code: FindingCode
    message: str
    segment: int | None = None
    turn: int | None = None

    def __str__(self) -> str:
        place = ", ".join(
            f"{name} {number}"
            for name, number in (("segment", self.segment), ("turn", self.turn))
            if number is not None
        )
        return f"{place}: {self.message}" if place else self.message


def check_result(result: RolloutResult, *, key: bytes | None = None) -> list[Finding]:
    """Everything wrong with a result's reward, trajectory, certificate and, given the server's key, signature."""
    found = check_trajectory(result.trajectory)
    if not math.isfinite(result.reward):  # msgpack has such numbers, JSON has not
        found.append(Finding(code="bad_reward", message=f"the reward is {result.reward}"))
    if key is not None:
        found += _check_signature(result, key)
    return found


def check_trajectory(trajectory: Trajectory) -> list[Finding]:
    """Structure and chain. An empty list says that nothing was changed after it was certified."""
    return [*check_structure(trajectory), *check_chain(trajectory)]


def check_structure(trajectory: Trajectory) -> list[Finding]:
    """What holds in every trajectory: lists of one length; turns that tile their segments; mask 1, a logprob (finite,
    at most 0) and a version exactly for the tokens of replies; branches that share what their parents hold."""
    found: list[Finding] = []
    replies: list[list[Turn]] = [[] for _ in trajectory.segments]
    ends = [segment.shared for segment in trajectory.segments]
    for number, turn in enumerate(trajectory.turns):
        wrong = _wrong_place(turn, trajectory, ends)
        if wrong is not None:
            found.append(Finding(code="bad_turn", message=wrong, segment=turn.segment, turn=number))
            continue
        ends[turn.segment] = turn.end
        if turn.role == "assistant":
            replies[turn.segment].append(turn)
    for number, segment in enumerate(trajectory.segments):
        wrong_segment = [
            *_check_lists(number, segment),
            *_check_sampled(number, segment, replies[number]),
            *_check_branch(number, segment, trajectory.segments),
        ]
        found += wrong_segment
        if ends[number] != len(segment.tokens):
            message = f"turns cover {ends[number]} of {len(segment.tokens)} tokens"
            found.append(Finding(code="bad_turn", message=message, segment=number))
    return found


def check_chain(trajectory: Trajectory) -> list[Finding]:
    """Recompute the certificate. Only the first broken link is named: all after it hang on it."""
    certificate, turns = trajectory.certificate, trajectory.turns
    if certificate is None:
        if not turns and not trajectory.segments:
            return []  # it ended before it began: there is nothing to certify
        return [Finding(code="no_certificate", message="there is no certificate")]
    if certificate.scheme != SCHEME:
        message = f"the certificate's scheme is {certificate.scheme!r}; this prorl knows {SCHEME}"
        return [Finding(code="unknown_scheme", message=message)]
    last, number = START, -1
    try:
        for number, last in enumerate(chain(trajectory)):
            if number >= len(certificate.links) or last.hex() != certificate.links[number]:
                break
        else:
            return _check_ends(certificate, trajectory, last)
    except ValueError as error:
        message = f"it cannot be hashed: {error}"
        return [Finding(code="broken_link", message=message, segment=_segment(turns, number + 1), turn=number + 1)]
    message = f"{len(turns)} turns but {len(certificate.links)} links"
    if number < len(certificate.links):
        message = "the turn, or the tokens before it, are not those that were certified"
    return [Finding(code="broken_link", message=message, segment=_segment(turns, number), turn=number)]


def _check_ends(certificate: Certificate, trajectory: Trajectory, last: bytes) -> list[Finding]:
    if len(certificate.links) != len(trajectory.turns):
        message = f"{len(trajectory.turns)} turns but {len(certificate.links)} links: turns were dropped"
        return [Finding(code="broken_link", message=message)]
    if seal(last, trajectory).hex() != certificate.seal:
        message = "model, tokenizer, template, logprob kind, notes or segments are not those that were certified"
        return [Finding(code="broken_seal", message=message)]
    return []


def _check_signature(result: RolloutResult, key: bytes) -> list[Finding]:
    certificate = result.trajectory.certificate
    if certificate is None or certificate.signature is None:
        return [Finding(code="no_signature", message="the result is not signed")]
    try:
        right = signature(key, result, certificate)
    except ValueError:  # a seal that is no hex
        right = ""
    if not hmac.compare_digest(right.encode(), certificate.signature.encode()):
        message = "the signature is not this key's, or certificate, reward, status or names were changed"
        return [Finding(code="wrong_signature", message=message)]
    return []


def _segment(turns: list[Turn], number: int) -> int | None:
    return turns[number].segment if number < len(turns) else None


def _wrong_place(turn: Turn, trajectory: Trajectory, ends: list[int]) -> str | None:
    if not 0 <= turn.segment < len(ends):
        return f"there is no segment {turn.segment}"
    if turn.start != ends[turn.segment]:
        return f"it begins at token {turn.start}, the turn before it ends at {ends[turn.segment]}"
    if not turn.start <= turn.end <= len(trajectory.segments[turn.segment].tokens):
        return f"it ends at token {turn.end}; it must end between {turn.start} and the segment's end"
    return None


def _check_lists(number: int, segment: Segment) -> Iterator[Finding]:
    sizes = (len(segment.tokens), len(segment.logprobs), len(segment.loss_mask))
    if len(set(sizes)) != 1:
        message = "{} tokens, {} logprobs and {} mask values".format(*sizes)
        yield Finding(code="lengths", message=message, segment=number)
    covered = sum(run.count for run in segment.versions)
    if covered != len(segment.tokens) or any(run.count < 1 for run in segment.versions):
        message = f"versions cover {covered} of {len(segment.tokens)} tokens"
        yield Finding(code="lengths", message=message, segment=number)
    if segment.tokens and not 0 <= min(segment.tokens) <= max(segment.tokens) < 2**32:
        yield Finding(code="bad_token", message="a token id is no unsigned number of 32 bits", segment=number)


def _check_sampled(number: int, segment: Segment, replies: list[Turn]) -> Iterator[Finding]:
    """The tokens of replies are sampled, and no others are."""
    tokens = sum(reply.end - reply.start for reply in replies)
    masks = [segment.loss_mask[reply.start : reply.end] for reply in replies]
    logprobs = [segment.logprobs[reply.start : reply.end] for reply in replies]
    if any(mask.count(1) != len(mask) for mask in masks) or segment.loss_mask.count(0) != len(segment.tokens) - tokens:
        yield Finding(code="bad_mask", message="the mask is not 1 exactly for the tokens of replies", segment=number)
    if segment.logprobs.count(None) != len(segment.tokens) - tokens or any(None in each for each in logprobs):
        yield Finding(code="bad_logprob", message="not exactly the tokens of replies have logprobs", segment=number)
    known = [logprob for logprob in segment.logprobs if logprob is not None]
    if not all(map(math.isfinite, known)) or max(known, default=0.0) > 0.0:
        yield Finding(code="bad_logprob", message="a logprob is above 0 or not finite", segment=number)
    at, runs = 0, Runs(segment)
    for reply in [*replies, None]:
        start, end = (reply.start, reply.end) if reply is not None else (len(segment.tokens),) * 2
        rendered, sampled = runs.within(at, start), runs.within(start, end)
        if any(run.version for run in rendered) or not all(run.version for run in sampled):
            message = "not exactly the tokens of replies have a policy version"
            yield Finding(code="bad_version", message=message, segment=number)
            return
        at = end


def _check_branch(number: int, segment: Segment, segments: list[Segment]) -> Iterator[Finding]:
    parent, shared = segment.parent, segment.shared
    if parent is not None and not 0 <= parent < number:
        yield Finding(code="bad_branch", message=f"its parent is {parent}: no earlier segment", segment=number)
        return
    if shared == 0:
        return
    known = segments[parent].tokens if parent is not None else []
    if not 0 < shared <= min(len(segment.tokens), len(known)) or any(
        mine != theirs for mine, theirs in islice(zip(segment.tokens, known, strict=False), shared)
    ):
        message = f"its first {shared} tokens are not those of its parent"
        yield Finding(code="bad_branch", message=message, segment=number)
