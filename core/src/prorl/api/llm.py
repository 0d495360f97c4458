"""Dialects, tokenizers and the chat, as handlers and dialect plugins see them.

A *dialect* speaks one engine's HTTP: token ids in, token ids and logprobs out. A *chat* is a conversation on one token
stream that only grows; handlers talk to the chat, never to a dialect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import httpx
import msgspec

from prorl.wire.sampling import SamplingParams
from prorl.wire.trajectory import Finish, ToolCall, Trajectory, VersionSpan

LogprobKind = Literal["processed", "temperature", "raw"]
Role = Literal["system", "user", "assistant", "tool"]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message to be rendered. ``name`` is the tool's for role ``tool``."""

    role: Role
    content: str
    name: str | None = None


class EngineInfo(msgspec.Struct, kw_only=True):
    """What an engine says of itself. ``chat_template`` is Jinja source where the engine hands it out;
    ``special_tokens`` the texts that templates name (``bos_token``, ``eos_token``). ``incarnation`` changes when the
    engine restarts (and has forgotten the weights that were pushed to it), where it lets one know."""

    dialect: str
    model: str
    max_context: int
    vocab_size: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    chat_template: str | None = None
    special_tokens: dict[str, str] = {}
    version: str | None = None
    incarnation: str | None = None


class Generation(msgspec.Struct, kw_only=True):
    """One reply as the engine sampled it. ``token_ids`` includes the stop token when the engine sampled one.

    ``weight_spans`` carry the engine's own names of its weights; an empty name stands for weights that it was not told
    the name of: those the backend was registered with.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish: Finish
    stop_token: int | None = None
    prompt_echo: list[int] | None = None
    weight_spans: list[VersionSpan] | None = None
    cached_tokens: int | None = None
    logprob_kind: LogprobKind = "processed"


class Tokenizer(Protocol):
    """Text to ids and back. ``encode(special=False)`` knows no added tokens at all: safe for untrusted text."""

    @property
    def digest(self) -> str: ...

    async def encode(self, text: str, *, special: bool) -> list[int]: ...

    async def decode(self, ids: Sequence[int]) -> str: ...


class Dialect(Protocol):
    """One engine behind one URL. Raises :class:`~prorl.api.errors.ModelFault` (``code="unreachable"`` when another
    backend may be tried)."""

    async def describe(self) -> EngineInfo: ...

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        request_id: str,
        session_id: str,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Generation: ...

    async def abort(self, request_id: str) -> None: ...

    async def health(self) -> None: ...

    async def tokenizer(self) -> Tokenizer:
        """The engine's own tokenizer, over HTTP."""
        ...


class DialectFactory(Protocol):
    """Builds a dialect; ``detect`` asks a server whether it speaks this one (never raises for an unlike server)."""

    async def detect(self, client: httpx.AsyncClient, url: str) -> bool: ...

    def connect(self, client: httpx.AsyncClient, url: str, *, model: str | None) -> Dialect: ...


class ToolSchema(msgspec.Struct, frozen=True, kw_only=True):
    """A tool in OpenAI's function form; ``parameters`` is a JSON schema."""

    name: str
    description: str
    parameters: Mapping[str, Any]


class Reply(msgspec.Struct, kw_only=True):
    """What the model said: decoded text (special tokens left out), parsed calls, and how it ended.

    ``answer`` is the text after any thinking and without the tool calls.
    """

    text: str
    answer: str
    tool_calls: list[ToolCall]
    finish: Finish
    tokens: int


class Chat(Protocol):
    """A conversation on one token stream. Earlier ids are never encoded again (design: token ledger)."""

    async def open(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> None:
        """Render the prompt once. Raises ``ContextOverflow`` when it does not fit, ``ModelFault`` without a backend."""
        ...

    async def reply(self, *, max_tokens: int | None = None) -> Reply:
        """Sample one reply and append it. Raises ``ContextOverflow`` or ``ModelFault``."""
        ...

    async def observe(self, messages: Sequence[Message], *, ms: float = 0.0) -> None:
        """Append tool results or user messages: only what the template adds between is rendered."""
        ...

    def note(self, text: str) -> None: ...

    def trajectory(self) -> Trajectory: ...
