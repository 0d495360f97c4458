"""What several engines' replies have in common, read in one way: spans of weight versions, logprobs that name their
token, logprobs that are missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

from prorl.api.errors import ModelFault
from prorl.wire.sampling import SamplingParams
from prorl.wire.trajectory import Finish, VersionSpan

T = TypeVar("T")
# What vLLM and SGLang call weights that nobody has named yet.
UNNAMED = "default"
_FINISHES: dict[str | None, Finish] = {"stop": "stop", "length": "length", "abort": "abort"}

# vLLM writes this where it has no logprob.
MISSING = -9999.0


class Span(msgspec.Struct):
    version: str
    start: int
    end: int


def version_spans(spans: Sequence[Span] | None, url: str) -> list[VersionSpan] | None:
    """Run lengths of the engine's own names, an empty one for weights that it was told no name of."""
    if spans is None:
        return None
    end = 0
    for span in spans:
        if span.start != end:
            raise ModelFault(f"{url}: version spans leave a gap at token {end}", code="version_gap")
        end = span.end
    return [VersionSpan(own_name(span.version), span.end - span.start) for span in spans]


def own_name(version: str) -> str:
    return "" if version == UNNAMED else version


def finish_of(reason: str | None, url: str) -> Finish:
    if reason not in _FINISHES:
        raise ModelFault(f"{url} finished for an unknown reason: {reason!r}", code="bad_response")
    return _FINISHES[reason]


def only(choices: Sequence[T], url: str) -> T:
    if len(choices) != 1:
        raise ModelFault(f"{url} returned {len(choices)} choices for one request", code="bad_response")
    return choices[0]


def same_tokens(ids: Sequence[int], named: Iterable[int | None], url: str) -> None:
    """Logprobs name the token they are for; a shorter list is left to the checks of every dialect."""
    for place, (token, other) in enumerate(zip(ids, named, strict=False)):
        if other is not None and other != token:
            raise ModelFault(f"{url}: token {place} is {token}, its logprob is of {other}", code="missing_logprobs")


def known(logprobs: Iterable[float | None]) -> list[float]:
    return [MISSING if logprob is None else logprob for logprob in logprobs]


def is_uncut(sampling: SamplingParams) -> bool:
    """Whether every token of the vocabulary can be drawn."""
    return (sampling.top_p, sampling.top_k, sampling.min_p) == (1.0, 0, 0.0)


def is_neutral(sampling: SamplingParams) -> bool:
    """Whether the distribution that is sampled is the policy's own: neither scaled nor cut."""
    return sampling.temperature == 1.0 and is_uncut(sampling)
