"""llama.cpp's own server: ``POST /completion`` with token ids.

All of its sampler defaults are overridden. Its logprobs are of the raw distribution, before temperature and cuts: they
are the policy's own only at temperature 1 with nothing cut. It stops at the model's end-of-generation tokens alone, so
other stop ids cut the reply here. It reports no logprob for a token that ends inside a character (the first bytes of
an emoji): those are asked for again, at the same place after the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
import msgspec

from prorl.api.errors import ConfigError, ModelFault
from prorl.api.llm import Dialect, EngineInfo, Generation, GenerationRequest, Tokenizer
from prorl.llm.dialects.http import Endpoint
from prorl.llm.dialects.models import Models, choose, owned_by
from prorl.llm.dialects.remote_tokenizer import RemoteTokenizer
from prorl.wire.sampling import SamplingParams
from prorl.wire.trajectory import Finish

_LIKELIEST = 500
_FORCED = 1e6  # a bias on one logit that no other can outweigh


class GenerationSettings(msgspec.Struct):
    n_ctx: int


class Props(msgspec.Struct):
    default_generation_settings: GenerationSettings
    chat_template: str | None = None
    bos_token: str = ""
    eos_token: str = ""
    build_info: str | None = None


class Candidate(msgspec.Struct):
    id: int
    logprob: float


class TokenProbability(Candidate):
    top_logprobs: list[Candidate] = []


class Timings(msgspec.Struct):
    cache_n: int | None = None


class Completion(msgspec.Struct):
    tokens: list[int]
    stop_type: str
    tokens_evaluated: int
    tokens_predicted: int
    completion_probabilities: list[TokenProbability] = []
    timings: Timings | None = None


class Tokens(msgspec.Struct):
    tokens: list[int]


class Content(msgspec.Struct):
    content: str


_FINISHES: dict[str, Finish] = {"eos": "stop", "word": "stop", "limit": "length"}


class LlamaCppFactory:
    """A server whose models are ``owned_by: llamacpp``."""

    async def detect(self, client: httpx.AsyncClient, url: str) -> bool:
        return await owned_by(client, url, "llamacpp")

    def connect(self, client: httpx.AsyncClient, url: str, *, model: str | None) -> Dialect:
        return LlamaCpp(client, url, model=model)


class LlamaCpp:
    """Implements :class:`~prorl.api.llm.Dialect`. One server serves one model."""

    def __init__(self, client: httpx.AsyncClient, url: str, *, model: str | None) -> None:
        self._client = client
        self._url = url
        self._model = model
        self._vocab_size: int | None = None
        self._eos: tuple[int, ...] = ()
        self._complete = Endpoint(client, f"{url}/completion", Completion)
        self._tokenize = Endpoint(client, f"{url}/tokenize", Tokens)
        self._detokenize = Endpoint(client, f"{url}/detokenize", Content)

    async def describe(self) -> EngineInfo:
        card = choose((await Endpoint(self._client, f"{self._url}/v1/models", Models).get()).data, None, self._url)
        name = card.id.rsplit("/", 1)[-1]  # by default the id is the file's path on the engine's machine
        if self._model not in (None, card.id, name):
            raise ConfigError(f"{self._url} does not serve the model {self._model!r}; it serves: {name}")
        props = await Endpoint(self._client, f"{self._url}/props", Props).get()
        if props.eos_token:
            self._eos = tuple(await self._encode(props.eos_token, True))[:1]
        self._vocab_size = card.meta.n_vocab if card.meta else None
        return EngineInfo(
            dialect="llamacpp",
            model=name,
            max_context=props.default_generation_settings.n_ctx,
            vocab_size=self._vocab_size,
            eos_token_ids=self._eos,
            chat_template=props.chat_template,
            special_tokens={"bos_token": props.bos_token, "eos_token": props.eos_token},
            version=props.build_info,
        )

    async def generate(self, request: GenerationRequest) -> Generation:
        prompt_ids, sampling = request.prompt_ids, request.sampling
        answer = await self._complete.post(_body(prompt_ids, sampling))
        logprobs = await self._logprobs(prompt_ids, answer)
        if answer.tokens_evaluated != len(prompt_ids):
            raise ModelFault(
                f"{self._url} read {answer.tokens_evaluated} tokens of a prompt of {len(prompt_ids)}",
                code="prompt_mismatch",
            )
        if answer.stop_type not in _FINISHES:
            raise ModelFault(f"{self._url} finished for an unknown reason: {answer.stop_type}", code="bad_response")
        ids, finish = answer.tokens, _FINISHES[answer.stop_type]
        if (end := next((i for i, token in enumerate(ids) if token in sampling.stop_token_ids), None)) is not None:
            ids, logprobs, finish = ids[: end + 1], logprobs[: end + 1], "stop"
        return Generation(
            token_ids=ids,
            logprobs=logprobs,
            finish=finish,
            stop_token=ids[-1] if finish == "stop" and ids else None,
            cached_tokens=answer.timings.cache_n if answer.timings else None,
            logprob_kind="raw",
        )

    async def abort(self, request_id: str) -> None:
        """A request ends with its connection; there is nothing else to say."""

    async def health(self) -> None:
        await Endpoint(self._client, f"{self._url}/health", msgspec.Raw).probe()

    async def tokenizer(self) -> Tokenizer:
        return await RemoteTokenizer.probe(self._encode, self._decode, plain=True)

    async def _encode(self, text: str, special: bool) -> list[int]:
        body = {"content": text, "parse_special": special, "add_special": False}
        return (await self._tokenize.post(body)).tokens

    async def _decode(self, ids: Sequence[int]) -> str:
        return (await self._detokenize.post({"tokens": list(ids)})).content

    async def _logprobs(self, prompt_ids: Sequence[int], answer: Completion) -> list[float]:
        """One per token. Reported ones come in order, with tokens left out: match them, and ask for the others."""
        reported = iter(answer.completion_probabilities)
        following = next(reported, None)
        logprobs = []
        for place, token in enumerate(answer.tokens):
            if following is not None and following.id == token:
                logprobs.append(following.logprob)
                following = next(reported, None)
            else:
                logprobs.append(await self._score([*prompt_ids, *answer.tokens[:place]], token))
        if following is not None:
            raise ModelFault(f"{self._url}: logprobs of other tokens than it returned", code="missing_logprobs")
        return logprobs

    async def _score(self, prefix: Sequence[int], token: int) -> float:
        """The raw logprob of ``token`` after ``prefix``: first among the likeliest, then among all (5 MB of JSON).

        The token sampled on the way is forced to one that ends a character, for without such a one nothing is reported.
        """
        if self._vocab_size is None or not self._eos:
            raise ModelFault(f"{self._url} reports no logprob for token {token}", code="missing_logprobs")
        greedy = SamplingParams(temperature=0.0, max_tokens=1)
        for likeliest in (_LIKELIEST, self._vocab_size):
            body = {**_body(prefix, greedy), "n_probs": likeliest, "logit_bias": [[self._eos[0], _FORCED]]}
            answer = await self._complete.post(body)
            for candidate in (c for entry in answer.completion_probabilities[:1] for c in entry.top_logprobs):
                if candidate.id == token:
                    return candidate.logprob
        raise ModelFault(f"{self._url} reports no logprob for token {token}", code="missing_logprobs")


def _body(prompt_ids: Sequence[int], sampling: SamplingParams) -> dict[str, Any]:
    """A request in which nothing is left to the server's defaults (which cut and penalise)."""
    return {
        "prompt": list(prompt_ids),
        "n_predict": sampling.max_tokens,
        "n_probs": 1,
        "return_tokens": True,
        "cache_prompt": True,  # the weights are those of the file: a prefix never goes stale
        "samplers": ["top_k", "top_p", "min_p", "temperature"],
        "temperature": sampling.temperature,
        "dynatemp_range": 0.0,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "mirostat": 0,
        "ignore_eos": False,
        "post_sampling_probs": False,
        "stop": [],
        "stream": False,
        "seed": -1 if sampling.seed is None else sampling.seed % 2**32,
    }
