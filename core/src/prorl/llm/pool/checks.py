"""What is checked of every reply before one of its tokens is believed.

Each broken promise is a :class:`ModelFault` with a code of its own: ``prompt_mismatch``, ``missing_logprobs``,
``bad_logprob``, ``bad_token``, ``version_gap``, ``too_long``, ``empty_reply``. Nothing is repaired: a reply that fails
is the engine's fault and never reaches a trajectory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from prorl.api.errors import ContextOverflow, ModelFault
from prorl.api.llm import EngineInfo, Generation
from prorl.llm.dialects.replies import MISSING
from prorl.wire.sampling import SamplingParams

# Engines compute log_softmax in float32: a probability of one may come out a rounding error above it.
ROUNDING = 1e-4


def fit_context(prompt_ids: Sequence[int], sampling: SamplingParams, info: EngineInfo) -> SamplingParams:
    """Sampling that fits the engine's context: ``max_tokens`` cut to the room there is.

    Engines differ in what they do beyond it (refuse, cut silently), so it is decided here, before anything is sent.
    Raises ``ContextOverflow`` when there is no room for one token.
    """
    room = info.max_context - len(prompt_ids)
    if room < 1:
        raise ContextOverflow(
            f"the prompt has {len(prompt_ids)} tokens; the context of {info.model} holds {info.max_context}"
        )
    return sampling if sampling.max_tokens <= room else msgspec.structs.replace(sampling, max_tokens=room)


def check_reply(
    generation: Generation, prompt_ids: Sequence[int], sampling: SamplingParams, info: EngineInfo, *, url: str
) -> Generation:
    """The same reply, with logprobs that rounding had put above 0 set to 0. Raises ``ModelFault`` (codes above).

    An engine that takes messages renders its own prompt, so there is none to compare its echo with.
    """
    ids, logprobs = generation.token_ids, generation.logprobs
    echo = generation.prompt_echo
    if info.takes == "ids" and echo is not None and echo != list(prompt_ids):
        raise ModelFault(_mismatch(echo, prompt_ids, url), code="prompt_mismatch")
    text_only = info.takes == "messages" and echo is None
    if not ids and not text_only and generation.finish != "abort":
        raise ModelFault(f"{url} returned no tokens (finish: {generation.finish})", code="empty_reply")
    if len(ids) > sampling.max_tokens:
        raise ModelFault(f"{url} returned {len(ids)} tokens; {sampling.max_tokens} were allowed", code="too_long")
    if len(logprobs) != len(ids):
        raise ModelFault(f"{url} returned {len(logprobs)} logprobs for {len(ids)} tokens", code="missing_logprobs")
    for place, logprob in enumerate(logprobs):
        if logprob <= MISSING:
            raise ModelFault(f"{url} has no logprob for token {place} ({logprob})", code="missing_logprobs")
        if not math.isfinite(logprob) or logprob > ROUNDING:
            raise ModelFault(f"{url}: token {place} has the logprob {logprob}", code="bad_logprob")
    bound = math.inf if info.vocab_size is None else info.vocab_size
    for place, token in enumerate(ids if echo is None or info.takes == "ids" else [*ids, *echo]):
        if not 0 <= token < bound:
            raise ModelFault(f"{url}: token {place} is {token}, outside the vocabulary ({bound})", code="bad_token")
    spans = generation.weight_spans
    if spans is not None and (any(s.count < 1 for s in spans) or sum(s.count for s in spans) != len(ids)):
        raise ModelFault(f"{url}: its version spans do not cover the reply of {len(ids)} tokens", code="version_gap")
    if any(logprob > 0.0 for logprob in logprobs):
        return msgspec.structs.replace(generation, logprobs=[min(logprob, 0.0) for logprob in logprobs])
    return generation


def _mismatch(echo: Sequence[int], sent: Sequence[int], url: str) -> str:
    where = next((i for i, (a, b) in enumerate(zip(echo, sent, strict=False)) if a != b), min(len(echo), len(sent)))
    return f"{url} sampled after another prompt: {len(echo)} tokens for {len(sent)}, different from token {where} on"
