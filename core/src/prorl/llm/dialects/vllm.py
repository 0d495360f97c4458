"""vLLM: ``/inference/v1/generate`` where the server has it (``--enable-scale-out``), else ``/v1/completions``.

Start it with ``--generation-config vllm`` (or the model's own sampling defaults apply to what is not said here) and
``--logprobs-mode processed_logprobs`` (or logprobs are those before temperature). Only the first endpoint reports
which weights sampled a token. A client that disconnects stops its request; ``abort`` says so once more. The header
``x-session-id`` names the task: vLLM ignores it, a router in front can send all of a task's turns to one replica.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

import httpx
import msgspec

from prorl.api.errors import ModelFault
from prorl.api.llm import Dialect, EngineInfo, Generation, GenerationRequest, LogprobKind, Tokenizer
from prorl.llm.dialects import vllm_shapes as shapes
from prorl.llm.dialects.http import Endpoint, Unsupported
from prorl.llm.dialects.models import Models, choose, owned_by
from prorl.llm.dialects.remote_tokenizer import RemoteTokenizer
from prorl.llm.dialects.replies import finish_of, is_neutral, known, only, same_tokens, version_spans
from prorl.wire.sampling import SamplingParams
from prorl.wire.trajectory import VersionSpan

_SESSION = "x-session-id"
_START_TIME = re.compile(rb"^process_start_time_seconds ([0-9.e+]+)", re.MULTILINE)


class VllmFactory:
    """A server whose models are ``owned_by: vllm``."""

    async def detect(self, client: httpx.AsyncClient, url: str) -> bool:
        return await owned_by(client, url, "vllm")

    def connect(self, client: httpx.AsyncClient, url: str, *, model: str | None) -> Dialect:
        return Vllm(client, url, model=model)


class Vllm:
    """Implements :class:`~prorl.api.llm.Dialect`."""

    def __init__(self, client: httpx.AsyncClient, url: str, *, model: str | None) -> None:
        self._client = client
        self._url = url
        self._model = model
        self._processed = False
        self._has_generate = True
        self._started: str | None = None
        self._was_named = False
        self._generate = Endpoint(client, f"{url}/inference/v1/generate", shapes.Generated)
        self._complete = Endpoint(client, f"{url}/v1/completions", shapes.Completed)

    async def describe(self) -> EngineInfo:
        models = (await Endpoint(self._client, f"{self._url}/v1/models", Models).get()).data
        card = choose(models, self._model, self._url)
        if card.max_model_len is None:
            raise ModelFault(f"{self._url} does not say how long its context is", code="bad_response")
        self._model = card.id
        version = await Endpoint(self._client, f"{self._url}/version", shapes.Version).get_or_none()
        tokenizer = await Endpoint(self._client, f"{self._url}/tokenizer_info", shapes.TokenizerInfo).get_or_none()
        server = await Endpoint(self._client, f"{self._url}/server_info", shapes.ServerInfo).get_or_none(
            params={"config_format": "json"}
        )
        config = server.vllm_config.model_config if server else shapes.ModelConfig()
        self._processed = config.logprobs_mode == "processed_logprobs"
        self._started = await self._start_time()
        return EngineInfo(
            dialect="vllm",
            model=card.id,
            max_context=card.max_model_len,
            chat_template=tokenizer.chat_template if tokenizer else None,
            special_tokens=tokenizer.special_tokens() if tokenizer else {},
            version=version.version if version else None,
            incarnation=self._started,
        )

    async def generate(self, request: GenerationRequest) -> Generation:
        if not self._has_generate:
            return await self._by_completion(request)
        try:
            return await self._by_generate(request)
        except Unsupported:
            generation = await self._by_completion(request)
            self._has_generate = False  # only now: a missing model is a 404 as well
            return generation

    async def abort(self, request_id: str) -> None:
        if self._has_generate:  # the other endpoint's requests end with their connection, and only so
            endpoint = Endpoint(self._client, f"{self._url}/inference/v1/abort_requests", msgspec.Raw)
            await endpoint.notify({"request_ids": [f"generate-tokens-{request_id}"]})

    async def health(self) -> None:
        await Endpoint(self._client, f"{self._url}/health", msgspec.Raw).probe()

    async def tokenizer(self) -> Tokenizer:
        tokenize = Endpoint(self._client, f"{self._url}/tokenize", shapes.Tokenized)
        detokenize = Endpoint(self._client, f"{self._url}/detokenize", shapes.Detokenized)

        async def encode(text: str, special: bool) -> list[int]:  # noqa: ARG001 - it always knows added tokens
            return (await tokenize.post({"model": self._model, "prompt": text, "add_special_tokens": False})).tokens

        async def decode(ids: Sequence[int]) -> str:
            return (await detokenize.post({"model": self._model, "tokens": list(ids)})).prompt

        return await RemoteTokenizer.probe(encode, decode, plain=False)

    # --- the two endpoints ---------------------------------------------------------------------------------------

    def _common(self, request: GenerationRequest) -> dict[str, Any]:
        common: dict[str, Any] = {"model": self._model, "request_id": request.request_id, "return_token_ids": True}
        if request.cache_salt is not None:  # it takes few characters
            common["cache_salt"] = hashlib.sha256(request.cache_salt.encode()).hexdigest()[:32]
        return common

    async def _by_generate(self, request: GenerationRequest) -> Generation:
        body = {
            **self._common(request),
            "token_ids": list(request.prompt_ids),
            "sampling_params": {**_sampling(request.sampling), "detokenize": False, "logprobs": 0},
        }
        if request.priority:
            body["priority"] = -request.priority  # there, lower is earlier
        answer = await self._generate.post(body, headers={_SESSION: request.session_id})
        choice = only(answer.choices, self._url)
        content = (choice.logprobs.content if choice.logprobs else None) or []
        ids = choice.token_ids or []
        spans = version_spans(choice.weight_versions, self._url)
        await self._check_names(spans)
        same_tokens(ids, [entry.id for entry in content], self._url)
        return Generation(
            token_ids=ids,
            logprobs=known(entry.logprob for entry in content),
            finish=finish_of(choice.finish_reason, self._url),
            stop_token=_stop_token(choice, ids),
            prompt_echo=answer.prompt_token_ids,
            weight_spans=spans,
            cached_tokens=answer.usage.cached_tokens if answer.usage else None,
            logprob_kind=self._kind(request.sampling),
        )

    async def _by_completion(self, request: GenerationRequest) -> Generation:
        answer = await self._complete.post(
            {
                **self._common(request),
                **_sampling(request.sampling),
                "prompt": list(request.prompt_ids),
                "logprobs": 0,
                "return_tokens_as_token_ids": True,
            },
            headers={_SESSION: request.session_id},
        )
        choice = only(answer.choices, self._url)
        if choice.token_ids is None:
            raise ModelFault(f"{self._url} returned no token ids: vLLM 0.10.2 or newer is needed", code="bad_response")
        logprobs = choice.logprobs or shapes.CompletionLogprobs()
        same_tokens(choice.token_ids, [shapes.id_in(token) for token in logprobs.tokens], self._url)
        return Generation(
            token_ids=choice.token_ids,
            logprobs=known(logprobs.token_logprobs),
            finish=finish_of(choice.finish_reason, self._url),
            stop_token=_stop_token(choice, choice.token_ids),
            prompt_echo=choice.prompt_token_ids,
            cached_tokens=answer.usage.cached_tokens if answer.usage else None,
            logprob_kind=self._kind(request.sampling),
        )

    async def _check_names(self, spans: list[VersionSpan] | None) -> None:
        """Weights whose name was known and no longer is: a restarted engine has forgotten both, and its replies are of
        other weights than it is registered with. The next health check would say so too late for this one."""
        if spans and self._was_named and not any(span.version for span in spans):
            if await self._start_time() != self._started:
                raise ModelFault(f"{self._url} has restarted and lost its weights", code="unreachable")
            self._was_named = False  # somebody took the name away
        elif spans and spans[-1].version:
            self._was_named = True

    def _kind(self, sampling: SamplingParams) -> LogprobKind:
        """vLLM's default is the logprob before temperature and cuts; without those the two are one."""
        return "processed" if self._processed or is_neutral(sampling) else "raw"

    async def _start_time(self) -> str | None:
        """A restarted server has forgotten the weights that were pushed to it, and says so nowhere else."""
        try:
            response = await self._client.get(f"{self._url}/metrics")
        except httpx.HTTPError as error:
            raise ModelFault(f"{self._url} cannot be reached: {error}", code="unreachable") from error
        found = _START_TIME.search(response.content) if response.status_code == httpx.codes.OK else None
        return found.group(1).decode() if found else None


def _sampling(sampling: SamplingParams) -> dict[str, Any]:
    """Everything said, also the defaults: what is left out may come from the model's generation_config.json."""
    return {
        "n": 1,
        "max_tokens": sampling.max_tokens,
        "min_tokens": 0,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": False,
        "skip_special_tokens": False,
        **({} if sampling.seed is None else {"seed": sampling.seed}),
    }


def _stop_token(choice: shapes.AnyChoice, ids: list[int]) -> int | None:
    """The primary end-of-sequence token is reported by its absence."""
    if choice.finish_reason != "stop" or not ids:
        return None
    return choice.stop_reason if isinstance(choice.stop_reason, int) else ids[-1]
