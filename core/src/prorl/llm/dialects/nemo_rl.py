"""NeMo RL's own HTTP engine: ``/v1/chat/completions`` with ``required_prefix_token_ids``, and ``/tokenize``.

It takes messages, renders them with the model's template, and puts the ids that it is given in place of everything up
to the last reply. So it samples after our ids exactly as far as its rendering of the rest is ours, which is checked on
every turn: by the prompt that the reply echoes, else by asking ``/tokenize`` for the same. It names no model and has no
health check, no weight versions, no way to abort but a closed connection.

Temperature and top_p must be the trainer's own. It refuses others with a bare status 500, as it does when it is broken;
a sampling that it has taken once is not what it refuses.
"""

from __future__ import annotations

from typing import Any

import httpx
import msgspec

from prorl.api.errors import ConfigError, ModelFault
from prorl.api.llm import Dialect, EngineInfo, Generation, GenerationRequest, Tokenizer
from prorl.llm.dialects.chat_shapes import Chatted, prompt_of, tokens_of
from prorl.llm.dialects.http import Endpoint, Refused
from prorl.llm.dialects.messages import chat_messages, chat_tools
from prorl.llm.dialects.replies import finish_of, known, only, same_tokens
from prorl.wire.sampling import SamplingParams

_SERVER_ERROR = 500
_PROBE = [{"role": role, "content": "?"} for role in ("user", "assistant", "user")]


class Tokenized(msgspec.Struct):
    tokens: list[int]
    max_model_len: int


class NemoRlFactory:
    """A server whose ``/tokenize`` puts a required prefix in place: others ignore it, or know no messages there."""

    async def detect(self, client: httpx.AsyncClient, url: str) -> bool:
        tokenize = Endpoint(client, f"{url}/tokenize", Tokenized)
        plain = await tokenize.post_or_none({"messages": _PROBE})
        if plain is None or not plain.tokens:
            return False
        prefix = [plain.tokens[0]] * 3  # which no template begins with
        spliced = await tokenize.post_or_none({"messages": _PROBE, "required_prefix_token_ids": prefix})
        return spliced is not None and spliced.tokens[:3] == prefix and plain.tokens[:3] != prefix

    def connect(self, client: httpx.AsyncClient, url: str, *, model: str | None) -> Dialect:
        return NemoRl(client, url, model=model)


class NemoRl:
    """Implements :class:`~prorl.api.llm.Dialect`."""

    def __init__(self, client: httpx.AsyncClient, url: str, *, model: str | None) -> None:
        self._url = url
        self._model = model
        self._complete = Endpoint(client, f"{url}/v1/chat/completions", Chatted)
        self._tokenize = Endpoint(client, f"{url}/tokenize", Tokenized)
        self._taken: set[tuple[float, float]] = set()

    async def describe(self) -> EngineInfo:
        tokenized = await self._tokenize.post({**self._named(), "messages": _PROBE})
        return EngineInfo(dialect="nemo-rl", model=self._model or "policy", max_context=tokenized.max_model_len)

    async def generate(self, request: GenerationRequest) -> Generation:
        conversation, sampling = request.conversation, request.sampling
        if conversation is None:
            raise ModelFault(f"{self._url} (NeMo RL) takes conversations, not token ids alone", code="rejected")
        if sampling.top_k:
            raise ModelFault(f"{self._url} (NeMo RL) takes no top_k", code="rejected")
        prefix = list(request.prompt_ids[: conversation.prefix])
        rendered = {
            **self._named(),
            "messages": chat_messages(conversation.messages, as_they_are=True),
            **chat_tools(conversation.tools),
            **({"required_prefix_token_ids": prefix} if prefix else {}),
        }
        answer = await self._ask({**rendered, **_sampling(sampling), "request_id": request.request_id}, sampling)
        choice = only(answer.choices, self._url)
        prompt = prompt_of(answer, choice) or (await self._tokenize.post(rendered)).tokens
        tokens = tokens_of(answer, choice)
        if tokens is None:
            raise ModelFault(f"{self._url} returned no token ids, or no logprobs", code="missing_logprobs")
        same_tokens(tokens.ids, tokens.named, self._url)
        reason = "stop" if choice.finish_reason == "tool_calls" else choice.finish_reason
        finish = finish_of(reason, self._url)
        return Generation(
            token_ids=tokens.ids,
            logprobs=known(tokens.logprobs),
            finish=finish,
            stop_token=tokens.ids[-1] if finish == "stop" and tokens.ids else None,
            prompt_echo=prompt,
            cached_tokens=answer.usage.cached_tokens if answer.usage else None,
            logprob_kind="processed",
        )

    async def abort(self, request_id: str) -> None:
        """A request ends with its connection; there is nothing else to say."""

    async def health(self) -> None:
        await self._tokenize.post({**self._named(), "prompt": "?"})

    async def tokenizer(self) -> Tokenizer:
        raise ConfigError(
            f"{self._url} (NeMo RL) hands out neither template nor tokenizer: register it with "
            '"tokenizer", the folder or hub name of the policy\'s own'
        )

    def _named(self) -> dict[str, Any]:
        return {} if self._model is None else {"model": self._model}

    async def _ask(self, body: dict[str, Any], sampling: SamplingParams) -> Chatted:
        asked = (sampling.temperature, sampling.top_p)
        try:
            answer = await self._complete.post(body)
        except Refused as refusal:
            if refusal.status != _SERVER_ERROR or asked in self._taken:
                raise
            raise ModelFault(
                f"{self._url} (NeMo RL) answered 500 to temperature {asked[0]:g} and top_p {asked[1]:g}: they must be "
                f"those of its policy.generation settings, on every job ({refusal.said})",
                code="rejected",
            ) from refusal
        self._taken.add(asked)
        return answer


def _sampling(sampling: SamplingParams) -> dict[str, Any]:
    return {
        "n": 1,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": list(sampling.stop_token_ids),
        "logprobs": True,
        "top_logprobs": 0,  # refused when it is left out
        "return_tokens_as_token_ids": True,
        "return_token_ids": True,
        **({} if sampling.seed is None else {"seed": sampling.seed}),
    }
