"""SGLang: ``POST /generate`` with token ids.

Its logprobs are those after temperature and before any cut (``SGLANG_RETURN_ORIGINAL_LOGPROB`` at the server makes them
raw, and it does not say so: leave it unset). It hands out neither chat template nor end-of-sequence ids, so a server of
this kind is registered with a tokenizer folder. Recent versions echo the prompt and say which weights sampled which
token; older ones count the prompt's tokens and name the weights that were loaded when the reply ended.

Written from SGLang's public source and tried on recorded shapes only: it does not install on the CPUs of our tests.
"""

from __future__ import annotations

from typing import Any

import httpx
import msgspec

from prorl.api.errors import ConfigError, ModelFault
from prorl.api.llm import Dialect, EngineInfo, Generation, GenerationRequest, LogprobKind, Tokenizer
from prorl.llm.dialects.http import Endpoint
from prorl.llm.dialects.models import Models, choose
from prorl.llm.dialects.replies import Span, finish_of, is_uncut, known, own_name, same_tokens, version_spans
from prorl.wire.sampling import SamplingParams
from prorl.wire.trajectory import VersionSpan


class ModelInfo(msgspec.Struct):
    """``/get_model_info`` (``/model_info`` in recent versions)."""

    model_path: str
    is_generation: bool
    weight_version: str | None = None


class ServerInfo(msgspec.Struct):
    """``/get_server_info`` (``/server_info``). The seed is drawn anew at every start unless one was given."""

    version: str | None = None
    random_seed: int | None = None
    max_total_num_tokens: int | None = None


class FinishReason(msgspec.Struct):
    """``matched``: the stop token's id, or the text of a stop string; ``message``: why it was aborted."""

    type: str
    matched: int | str | None = None
    message: str | None = None


class TokenLogprob(msgspec.Struct, array_like=True):
    """``[logprob, id, text or null]``."""

    logprob: float | None
    id: int
    text: str | None = None


class MetaInfo(msgspec.Struct):
    finish_reason: FinishReason | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_token_logprobs: list[TokenLogprob] = []
    weight_version: str | None = None
    weight_versions: list[Span] | None = None


class Generated(msgspec.Struct):
    output_ids: list[int]
    meta_info: MetaInfo
    prompt_token_ids: list[int] | None = None


class SglangFactory:
    """A server that answers ``/get_model_info``."""

    async def detect(self, client: httpx.AsyncClient, url: str) -> bool:
        return await _ask(client, url, "model_info", ModelInfo) is not None

    def connect(self, client: httpx.AsyncClient, url: str, *, model: str | None) -> Dialect:
        return Sglang(client, url, model=model)


class Sglang:
    """Implements :class:`~prorl.api.llm.Dialect`. One server serves one model."""

    def __init__(self, client: httpx.AsyncClient, url: str, *, model: str | None) -> None:
        self._client = client
        self._url = url
        self._model = model
        self._generate = Endpoint(client, f"{url}/generate", Generated)

    async def describe(self) -> EngineInfo:
        models = (await Endpoint(self._client, f"{self._url}/v1/models", Models).get()).data
        card = choose(models, self._model, self._url)
        model = await _ask(self._client, self._url, "model_info", ModelInfo)
        if model is not None and not model.is_generation:
            raise ConfigError(f"{self._url} serves a model that does not generate text ({model.model_path})")
        server = await _ask(self._client, self._url, "server_info", ServerInfo) or ServerInfo()
        if card.max_model_len is None:
            raise ModelFault(f"{self._url} does not say how long its context is", code="bad_response")
        return EngineInfo(
            dialect="sglang",
            model=card.id,
            max_context=min(card.max_model_len, server.max_total_num_tokens or card.max_model_len),
            version=server.version,
            incarnation=None if server.random_seed is None else str(server.random_seed),
        )

    async def generate(self, request: GenerationRequest) -> Generation:
        body = {
            "rid": request.request_id,
            "input_ids": list(request.prompt_ids),
            "sampling_params": _sampling(request.sampling),
            "return_logprob": True,
            "logprob_start_len": -1,
            "return_prompt_token_ids": True,
            "stream": False,
            **({} if request.cache_salt is None else {"extra_key": request.cache_salt}),
            **({"priority": request.priority} if request.priority else {}),
        }
        answer = await self._generate.post(body)
        meta, ids, length = answer.meta_info, answer.output_ids, len(request.prompt_ids)
        if meta.prompt_tokens not in (None, length):
            raise ModelFault(
                f"{self._url} read {meta.prompt_tokens} tokens of a prompt of {length}", code="prompt_mismatch"
            )
        same_tokens(ids, [entry.id for entry in meta.output_token_logprobs], self._url)
        reason = meta.finish_reason or FinishReason("unknown")
        stop = reason.matched if reason.type == "stop" and isinstance(reason.matched, int) else None
        return Generation(
            token_ids=ids,
            logprobs=known(entry.logprob for entry in meta.output_token_logprobs),
            finish=finish_of(reason.type, self._url),
            stop_token=stop,
            prompt_echo=answer.prompt_token_ids,
            weight_spans=self._spans(meta, len(ids)),
            cached_tokens=meta.cached_tokens,
            logprob_kind=_kind(request.sampling),
        )

    async def abort(self, request_id: str) -> None:
        """It aborts every request whose id begins with what it is given: never give it an empty one."""
        if request_id:
            await Endpoint(self._client, f"{self._url}/abort_request", msgspec.Raw).notify({"rid": request_id})

    async def health(self) -> None:
        await Endpoint(self._client, f"{self._url}/health", msgspec.Raw).probe()

    async def tokenizer(self) -> Tokenizer:
        raise ConfigError(
            f"{self._url} hands out no chat template (SGLang has no such endpoint): register it with "
            '"tokenizer", a folder or hub name'
        )

    def _spans(self, meta: MetaInfo, length: int) -> list[VersionSpan] | None:
        if meta.weight_versions is not None or meta.weight_version is None:
            return version_spans(meta.weight_versions, self._url)
        return [VersionSpan(own_name(meta.weight_version), length)] if length else None


async def _ask(client: httpx.AsyncClient, url: str, what: str, answer: type[Any]) -> Any:
    """Under its old name first: recent versions know both."""
    for path in (f"get_{what}", what):
        if (found := await Endpoint(client, f"{url}/{path}", answer).get_or_none()) is not None:
            return found
    return None


def _kind(sampling: SamplingParams) -> LogprobKind:
    if sampling.temperature == 0.0:
        return "raw"  # the likeliest token, with its logprob at temperature 1
    return "processed" if is_uncut(sampling) else "temperature"


def _sampling(sampling: SamplingParams) -> dict[str, Any]:
    """Everything said, also the defaults: what is left out may come from the model's generation_config.json."""
    return {
        "max_new_tokens": sampling.max_tokens,
        "min_new_tokens": 0,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": False,
        "skip_special_tokens": False,
        "no_stop_trim": True,
        "n": 1,
        **({} if sampling.seed is None else {"sampling_seed": sampling.seed}),
    }
