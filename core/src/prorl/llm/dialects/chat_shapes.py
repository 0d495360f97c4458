"""``/v1/chat/completions``: OpenAI's answer, with what vLLM and NeMo RL add so that the sampled ids can be known."""

from __future__ import annotations

from typing import Any

import msgspec

from prorl.llm.dialects.vllm_shapes import Usage, id_in
from prorl.wire.trajectory import ToolCall


class Function(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any] | None = None


class Call(msgspec.Struct):
    function: Function


class SaidMessage(msgspec.Struct):
    """``reasoning`` or ``reasoning_content``: thinking that the server took out of the text. The last three are NeMo
    RL's."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Call] | None = None
    prompt_token_ids: list[int] | None = None
    generation_token_ids: list[int] | None = None
    generation_log_probs: list[float | None] | None = None

    @property
    def text(self) -> str:
        thought = self.reasoning or self.reasoning_content
        return f"<think>\n{thought}\n</think>\n\n{self.content or ''}" if thought else self.content or ""

    @property
    def calls(self) -> list[ToolCall]:
        return [_call(call.function) for call in self.tool_calls or []]


class ChatLogprob(msgspec.Struct):
    logprob: float | None
    token: str | None = None


class ChatLogprobs(msgspec.Struct):
    content: list[ChatLogprob] | None = None


class ChatChoice(msgspec.Struct):
    message: SaidMessage
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    logprobs: ChatLogprobs | None = None


class Chatted(msgspec.Struct):
    choices: list[ChatChoice]
    prompt_token_ids: list[int] | None = None
    usage: Usage | None = None


class SampledTokens(msgspec.Struct):
    """A reply's tokens. ``named``: the id that each logprob says it is of, where it does."""

    ids: list[int]
    logprobs: list[float | None]
    named: list[int | None]


def tokens_of(answer: Chatted, choice: ChatChoice) -> SampledTokens | None:
    """The sampled ids with their logprobs, where the reply brings both; ``None`` where it does not.

    Older servers say the ids nowhere but in the logprobs. One that is missing there would not be missed: the count in
    the usage has to agree.
    """
    message, content = choice.message, choice.logprobs.content if choice.logprobs else None
    if message.generation_token_ids is not None and message.generation_log_probs is not None:
        return SampledTokens(message.generation_token_ids, message.generation_log_probs, [])
    if content is None:
        return None
    named, logprobs = [id_in(entry.token) for entry in content], [entry.logprob for entry in content]
    if choice.token_ids is not None:
        return SampledTokens(choice.token_ids, logprobs, named)
    ids = [token for token in named if token is not None]
    counted = answer.usage.completion_tokens if answer.usage else None
    return SampledTokens(ids, logprobs, named) if len(ids) == len(named) == counted else None


def prompt_of(answer: Chatted, choice: ChatChoice) -> list[int] | None:
    own = choice.message.prompt_token_ids
    return own if own is not None else answer.prompt_token_ids


def _call(function: Function) -> ToolCall:
    arguments = function.arguments or {}
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments)
        except (msgspec.DecodeError, RecursionError) as error:  # the model's mistake, and no fault of the engine
            return ToolCall(name=function.name, error=f"the arguments are no valid JSON: {error}")
    if not isinstance(arguments, dict):
        return ToolCall(name=function.name, error="the arguments are not a JSON object")
    return ToolCall(name=function.name, arguments=arguments)
