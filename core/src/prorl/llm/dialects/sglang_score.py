"""SGLang's logprobs of a prompt: of the model's own distribution, whatever the temperature.

Written from its public source and tried on recorded shapes only, as the dialect is.
"""

from __future__ import annotations

from collections.abc import Sequence

import httpx
import msgspec

from prorl.api.errors import ModelFault
from prorl.llm.dialects.http import Endpoint
from prorl.llm.dialects.replies import own_name
from prorl.llm.dialects.sglang import ModelInfo, TokenLogprob


class _Meta(msgspec.Struct):
    input_token_logprobs: list[TokenLogprob] = []


class _Scored(msgspec.Struct):
    meta_info: _Meta


class SglangScores:
    """Implements :class:`prorl.llm.dialects.scoring.Scores`."""

    def __init__(self, client: httpx.AsyncClient, url: str, model: str) -> None:
        self._url = url
        self._generate = Endpoint(client, f"{url}/generate", _Scored)
        self._infos = [Endpoint(client, f"{url}/{path}", ModelInfo) for path in ("get_model_info", "model_info")]

    async def score(self, ids: Sequence[int], *, temperature: float = 1.0) -> list[float | None]:
        if temperature not in (0.0, 1.0):  # the likeliest token comes with its logprob at temperature 1
            raise ModelFault(f"{self._url} scores at temperature 1 only, not at {temperature:g}", code="unsupported")
        answer = await self._generate.post(
            {
                "input_ids": list(ids),
                "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
                "return_logprob": True,
                "logprob_start_len": 0,
                "stream": False,
            }
        )
        entries = answer.meta_info.input_token_logprobs
        if [entry.id for entry in entries] != list(ids):
            raise ModelFault(f"{self._url} did not return one logprob per token of the prompt", code="bad_response")
        if any(entry.logprob is None for entry in entries[1:]):
            raise ModelFault(f"{self._url} has no logprob for some tokens of the prompt", code="bad_response")
        return [None, *(entry.logprob for entry in entries[1:])]

    async def weights(self) -> str | None:
        for info in self._infos:
            if (known := await info.get_or_none()) is not None:
                return own_name(known.weight_version or "") or None
        return None
