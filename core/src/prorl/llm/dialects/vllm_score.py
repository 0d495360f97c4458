"""vLLM's prompt logprobs: of the model's own distribution, in one call per segment.

At another temperature they must be scaled and normalised anew, which takes the whole distribution at every place: the
server gives that only with ``--max-logprobs -1``, and it is much (a vocabulary of numbers per token).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import httpx
import msgspec

from prorl.api.errors import ModelFault
from prorl.llm.dialects.http import Endpoint
from prorl.llm.dialects.replies import own_name


class _Entry(msgspec.Struct):
    logprob: float


class _Choice(msgspec.Struct):
    prompt_logprobs: list[dict[str, _Entry] | None] | None = None


class _Scored(msgspec.Struct):
    choices: list[_Choice]


class _Weights(msgspec.Struct):
    weight_version: str


class VllmScores:
    """Implements :class:`prorl.llm.dialects.scoring.Scores`."""

    def __init__(self, client: httpx.AsyncClient, url: str, model: str) -> None:
        self._url = url
        self._model = model
        self._complete = Endpoint(client, f"{url}/v1/completions", _Scored)
        self._weights = Endpoint(client, f"{url}/weight_info", _Weights)

    async def score(self, ids: Sequence[int], *, temperature: float = 1.0) -> list[float | None]:
        whole = temperature not in (0.0, 1.0)  # greedy replies carry the model's own logprobs
        body = {
            "model": self._model,
            "prompt": list(ids),
            "max_tokens": 1,
            "temperature": 1.0,
            "prompt_logprobs": -1 if whole else 0,
        }
        try:
            answer = await self._complete.post(body)
        except ModelFault as fault:
            if whole and fault.code == "rejected":
                raise ModelFault(
                    f"scoring at temperature {temperature:g} takes a server started with --max-logprobs -1: {fault}",
                    code="unsupported",
                ) from fault
            raise
        places = answer.choices[0].prompt_logprobs if len(answer.choices) == 1 else None
        if places is None or len(places) != len(ids):
            raise ModelFault(f"{self._url} did not return one prompt logprob per token", code="bad_response")
        return [None, *(self._at(place, token, temperature if whole else 1.0) for place, token in _pairs(places, ids))]

    async def weights(self) -> str | None:
        known = await self._weights.get_or_none()
        return None if known is None else own_name(known.weight_version) or None

    def _at(self, place: dict[str, _Entry] | None, token: int, temperature: float) -> float:
        entry = (place or {}).get(str(token))
        if place is None or entry is None:
            raise ModelFault(f"{self._url} has no logprob for the prompt's token {token}", code="bad_response")
        if temperature == 1.0:
            return entry.logprob
        highest = max(each.logprob for each in place.values())
        total = sum(math.exp((each.logprob - highest) / temperature) for each in place.values())
        return (entry.logprob - highest) / temperature - math.log(total)


def _pairs(
    places: Sequence[dict[str, _Entry] | None], ids: Sequence[int]
) -> Sequence[tuple[dict[str, _Entry] | None, int]]:
    """The first token has nothing before it."""
    return list(zip(places[1:], ids[1:], strict=True))
