"""Any server with ``/v1/chat/completions``: it takes messages and renders them itself.

Made for evaluation. A trajectory is trainable only where each reply brings the ids of its prompt, its own ids and their
logprobs (vLLM does, asked with ``return_token_ids``): they are recorded as they came. Elsewhere a reply is text, and
the trajectory says so.

What servers add to OpenAI's request is tried first, and left out for good once a server has refused it and taken the
rest. Calls are parsed by the server where it can; where it says that it cannot, tools are still shown to the model and
its text is parsed here.
"""

from __future__ import annotations

import re
from typing import Any

import httpx
import msgspec

from prorl.api.errors import ConfigError, ContextOverflow, ModelFault
from prorl.api.llm import Dialect, EngineInfo, Generation, GenerationRequest, Tokenizer
from prorl.llm.dialects.chat_shapes import ChatChoice, Chatted, prompt_of, tokens_of
from prorl.llm.dialects.http import Endpoint, Refused
from prorl.llm.dialects.messages import chat_messages, chat_tools
from prorl.llm.dialects.models import Models, choose, models_at
from prorl.llm.dialects.replies import finish_of, is_neutral, known, only, same_tokens
from prorl.wire.sampling import SamplingParams

_BAD_REQUEST = (400, 413, 422)
# OpenAI, vLLM, SGLang, llama.cpp and several hosts, in their own words.
_OVERFLOW = re.compile(
    r"context[_ -](?:length|window|size)|maximum context|model's maximum|prompt is too long|reduce the length",
    re.IGNORECASE,
)
_NO_PARSER = re.compile(r"tool[-_ ]choice|tool[-_ ]call[-_ ]parser", re.IGNORECASE)
_NEW_LIMIT = "max_completion_tokens"
# How a reply can end beyond what other engines say.
_ENDINGS = {"tool_calls": "stop", "function_call": "stop", "content_filter": "abort"}


class OpenAiChatFactory:
    """The last resort of detection: anything with a list of models."""

    async def detect(self, client: httpx.AsyncClient, url: str) -> bool:
        return bool(await models_at(client, url))

    def connect(self, client: httpx.AsyncClient, url: str, *, model: str | None) -> Dialect:
        return OpenAiChat(client, url, model=model)


class OpenAiChat:
    """Implements :class:`~prorl.api.llm.Dialect`."""

    def __init__(self, client: httpx.AsyncClient, url: str, *, model: str | None) -> None:
        self._client = client
        self._url = url
        self._model = model
        self._limit = "max_tokens"
        self._extended = True
        self._parses_calls = True
        self._complete = Endpoint(client, f"{url}/v1/chat/completions", Chatted)

    async def describe(self) -> EngineInfo:
        """``max_context`` is 0 where the server does not say: it must then be registered with one."""
        models = (await Endpoint(self._client, f"{self._url}/v1/models", Models).get()).data
        card = choose(models, self._model, self._url)
        self._model = card.id
        return EngineInfo(dialect="openai-chat", model=card.id, max_context=card.max_model_len or 0, takes="messages")

    async def generate(self, request: GenerationRequest) -> Generation:
        conversation, sampling = request.conversation, request.sampling
        if conversation is None:
            raise ModelFault(f"{self._url} takes conversations, not token ids", code="rejected")
        body = {
            "model": self._model,
            "messages": chat_messages(conversation.messages),
            **chat_tools(conversation.tools),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "stream": False,
            **({} if sampling.seed is None else {"seed": sampling.seed}),
        }
        answer = await self._ask_with_tools(body, sampling)
        return self._generation(answer, only(answer.choices, self._url), sampling)

    async def abort(self, request_id: str) -> None:
        """A request ends with its connection; there is nothing else to say."""

    async def health(self) -> None:
        await Endpoint(self._client, f"{self._url}/v1/models", msgspec.Raw).probe()

    async def tokenizer(self) -> Tokenizer:
        raise ConfigError(f"{self._url} is spoken to in messages: there is no tokenizer to ask it for")

    def _generation(self, answer: Chatted, choice: ChatChoice, sampling: SamplingParams) -> Generation:
        finish = finish_of(_ENDINGS.get(choice.finish_reason or "", choice.finish_reason), self._url)
        said = Generation(
            token_ids=[],
            logprobs=[],
            finish=finish,
            cached_tokens=answer.usage.cached_tokens if answer.usage else None,
            logprob_kind="processed" if is_neutral(sampling) else "raw",
            text=choice.message.text,
            tool_calls=choice.message.calls or None,
        )
        prompt, tokens = prompt_of(answer, choice), tokens_of(answer, choice)
        if prompt is None or tokens is None:
            return said
        same_tokens(tokens.ids, tokens.named, self._url)
        return msgspec.structs.replace(
            said,
            token_ids=tokens.ids,
            logprobs=known(tokens.logprobs),
            stop_token=tokens.ids[-1] if finish == "stop" and tokens.ids else None,
            prompt_echo=prompt,
        )

    # --- what a server takes -------------------------------------------------------------------------------------

    async def _ask_with_tools(self, body: dict[str, Any], sampling: SamplingParams) -> Chatted:
        if "tools" not in body:
            return await self._ask(body, sampling)
        if self._parses_calls:
            try:
                return await self._ask(body, sampling)
            except Refused as refusal:
                if not _NO_PARSER.search(refusal.said):
                    raise
        answer = await self._ask({**body, "tool_choice": "none"}, sampling)
        self._parses_calls = False
        return answer

    async def _ask(self, body: dict[str, Any], sampling: SamplingParams) -> Chatted:
        if self._extended:
            try:
                return await self._within_context({**body, **_extensions(sampling)}, sampling.max_tokens)
            except Refused as refusal:
                if refusal.status not in _BAD_REQUEST or _NO_PARSER.search(refusal.said):
                    raise
        if sampling.top_k or sampling.min_p or sampling.stop_token_ids:
            raise ModelFault(f"{self._url} takes none of top_k, min_p and stop_token_ids", code="rejected")
        answer = await self._within_context(body, sampling.max_tokens)
        self._extended = False
        return answer

    async def _within_context(self, body: dict[str, Any], max_tokens: int) -> Chatted:
        """How long the prompt is, only the server knows. Where prompt and ``max_tokens`` together are too much, the
        reply gets what is left, which is less than ``max_tokens``."""
        try:
            return await self._limited(body, max_tokens)
        except Refused as refusal:
            if not _overflowed(refusal):
                raise
        try:
            return await self._complete.post(body)
        except Refused as refusal:
            if not _overflowed(refusal):
                raise
            raise ContextOverflow(f"{self._url} has no room for this conversation: {refusal.said}") from refusal

    async def _limited(self, body: dict[str, Any], max_tokens: int) -> Chatted:
        """OpenAI has renamed the limit; only its own newer models insist."""
        try:
            return await self._complete.post({**body, self._limit: max_tokens})
        except Refused as refusal:
            if self._limit == _NEW_LIMIT or _NEW_LIMIT not in refusal.said:
                raise
        answer = await self._complete.post({**body, _NEW_LIMIT: max_tokens})
        self._limit = _NEW_LIMIT
        return answer


def _overflowed(refusal: Refused) -> bool:
    return refusal.status in _BAD_REQUEST and _OVERFLOW.search(refusal.said) is not None


def _extensions(sampling: SamplingParams) -> dict[str, Any]:
    """vLLM's, most of which others know as well or ignore: nothing cut or penalised, and ids with the text."""
    return {
        "n": 1,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": list(sampling.stop_token_ids),
        "logprobs": True,
        "top_logprobs": 0,
        "return_tokens_as_token_ids": True,
        "return_token_ids": True,
    }
