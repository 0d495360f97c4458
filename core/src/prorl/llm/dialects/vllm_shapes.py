"""vLLM's answers, as far as they are read: those of 0.32. Older versions write ``token: "token_id:N"``."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from prorl.llm.dialects.replies import Span


def id_in(token: str | None) -> int | None:
    """``"token_id:17"`` -> 17."""
    prefix, _, number = (token or "").partition(":")
    return int(number) if prefix == "token_id" and number.isdecimal() else None


class Version(msgspec.Struct):
    version: str


class TokenizerInfo(msgspec.Struct):
    """Tokens are texts, or objects with the text inside."""

    chat_template: str | None = None
    bos_token: Any = None
    eos_token: Any = None
    pad_token: Any = None

    def special_tokens(self) -> dict[str, str]:
        found = {"bos_token": self.bos_token, "eos_token": self.eos_token, "pad_token": self.pad_token}
        texts = {name: token.get("content") if isinstance(token, dict) else token for name, token in found.items()}
        return {name: text for name, text in texts.items() if isinstance(text, str)}


class ModelConfig(msgspec.Struct):
    logprobs_mode: str | None = None


class VllmConfig(msgspec.Struct):
    model_config: ModelConfig


class ServerInfo(msgspec.Struct):
    """Served in development mode only."""

    vllm_config: VllmConfig


class PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None


class TokenLogprob(msgspec.Struct):
    logprob: float | None
    token_id: int | None = None
    token: str | None = None

    @property
    def id(self) -> int | None:
        return self.token_id if self.token_id is not None else id_in(self.token)


class GeneratedLogprobs(msgspec.Struct):
    content: list[TokenLogprob] | None = None


class GeneratedChoice(msgspec.Struct):
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    logprobs: GeneratedLogprobs | None = None
    weight_versions: list[Span] | None = None


class Generated(msgspec.Struct):
    choices: list[GeneratedChoice]
    prompt_token_ids: list[int] | None = None
    usage: Usage | None = None


class CompletionLogprobs(msgspec.Struct):
    token_logprobs: list[float | None] = []
    tokens: list[str] = []


class CompletionChoice(msgspec.Struct):
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: CompletionLogprobs | None = None


class Completed(msgspec.Struct):
    choices: list[CompletionChoice]
    usage: Usage | None = None


class Tokenized(msgspec.Struct):
    tokens: list[int]


class Detokenized(msgspec.Struct):
    prompt: str


AnyChoice = TypeVar("AnyChoice", GeneratedChoice, CompletionChoice)
