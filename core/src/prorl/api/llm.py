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
from prorl.wire.trajectory import Finish, SegmentOrigin, ToolCall, Trajectory, VersionSpan

LogprobKind = Literal["processed", "temperature", "raw"]
Role = Literal["system", "user", "assistant", "tool"]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message to be rendered. ``name`` is the tool's for role ``tool``; ``tool_calls`` are an assistant's, whose
    ``content`` is then the text without them."""

    role: Role
    content: str
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


class EngineInfo(msgspec.Struct, kw_only=True):
    """What an engine says of itself. ``chat_template`` is Jinja source where the engine hands it out;
    ``special_tokens`` the texts that templates name (``bos_token``, ``eos_token``). ``incarnation`` changes when the
    engine restarts (and has forgotten the weights that were pushed to it), where it lets one know. ``takes`` is what
    it samples after: token ids, or only messages that it renders itself (then a trajectory is trainable only where it
    returns both id lists). ``max_context`` is in tokens, 0 where the engine does not say (the registration then
    does)."""

    dialect: str
    model: str
    max_context: int
    vocab_size: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    chat_template: str | None = None
    special_tokens: dict[str, str] = {}
    version: str | None = None
    incarnation: str | None = None
    takes: Literal["ids", "messages"] = "ids"


class Generation(msgspec.Struct, kw_only=True):
    """One reply as the engine sampled it. ``token_ids`` includes the stop token when the engine sampled one.

    ``weight_spans`` carry the engine's own names of its weights; an empty name stands for weights that it was not told
    the name of: those the backend was registered with.

    ``text`` and ``tool_calls`` are filled by engines that take messages and parse replies themselves.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish: Finish
    stop_token: int | None = None
    prompt_echo: list[int] | None = None
    weight_spans: list[VersionSpan] | None = None
    cached_tokens: int | None = None
    logprob_kind: LogprobKind = "processed"
    text: str | None = None
    tool_calls: list[ToolCall] | None = None


class ToolSchema(msgspec.Struct, frozen=True, kw_only=True):
    """A tool in OpenAI's function form; ``parameters`` is a JSON schema."""

    name: str
    description: str
    parameters: Mapping[str, Any]


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """What the prompt ids of a call stand for, for engines whose HTTP also (or only) takes messages. ``prefix`` counts
    the leading ids that end with the last sampled reply (0: there was none)."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...] = ()
    prefix: int = 0


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend asks of its engine: one reply.

    ``request_id`` is what :meth:`Dialect.abort` takes. ``session_id`` names the task: its calls share a prefix.
    ``cache_salt`` names the weights: prefixes that others computed must not be reused. Higher ``priority`` comes first.
    ``conversation`` is what the ids stand for, for engines that take messages.
    """

    prompt_ids: Sequence[int]
    sampling: SamplingParams
    request_id: str
    session_id: str
    cache_salt: str | None = None
    priority: int = 0
    conversation: Conversation | None = None


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

    async def generate(self, request: GenerationRequest) -> Generation:
        """One reply, sampled after exactly ``request.prompt_ids``; engines that take messages may render others, which
        is checked. How long it may take is the caller's business, who cancels the call."""
        ...

    async def abort(self, request_id: str) -> None: ...

    async def health(self) -> None: ...

    async def tokenizer(self) -> Tokenizer:
        """The engine's own tokenizer, over HTTP."""
        ...


class DialectFactory(Protocol):
    """Builds a dialect; ``detect`` asks a server whether it speaks this one (never raises for an unlike server)."""

    async def detect(self, client: httpx.AsyncClient, url: str) -> bool: ...

    def connect(self, client: httpx.AsyncClient, url: str, *, model: str | None) -> Dialect: ...


class Reply(msgspec.Struct, kw_only=True):
    """What the model said: decoded text (special tokens left out), parsed calls, and how it ended.

    ``answer`` is the text after any thinking and without the tool calls, ``reasoning`` the thinking.
    """

    text: str
    answer: str
    tool_calls: list[ToolCall]
    finish: Finish
    tokens: int
    reasoning: str = ""


class Chat(Protocol):
    """A conversation on one token stream. Earlier ids are never encoded again (design: token ledger)."""

    @property
    def room(self) -> int:
        """Tokens that the context of the backend in use still takes; 0 before :meth:`open`."""
        ...

    @property
    def tokens(self) -> int:
        """Length of the stream so far."""
        ...

    @property
    def messages(self) -> Sequence[Message]:
        """The conversation so far, replies included (as the model wrote them)."""
        ...

    async def measure(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> int:
        """How many tokens the prompt would have that :meth:`open` makes of these; nothing is recorded."""
        ...

    async def open(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> None:
        """Render the prompt once. Raises ``ContextOverflow`` when it does not fit, ``ModelFault`` without a backend."""
        ...

    async def reply(self, *, max_tokens: int | None = None) -> Reply:
        """Sample one reply and append it. Raises ``ContextOverflow`` or ``ModelFault``."""
        ...

    async def observe(self, messages: Sequence[Message], *, ms: float = 0.0, keep_free: int = 1) -> None:
        """Append tool results or user messages: only what the template adds between is rendered.

        Raises ``ContextOverflow``, and appends nothing, when fewer than ``keep_free`` tokens would be left for a reply.
        """
        ...

    async def restart(
        self, messages: Sequence[Message], *, origin: SegmentOrigin, note: str = "", keep_free: int = 1
    ) -> None:
        """Go on in a new segment that begins with these messages (the context was compacted, for instance); the tools
        stay. The old segment stays in the trajectory.

        Raises ``ContextOverflow``, and changes nothing, when fewer than ``keep_free`` tokens would be left for a reply.
        """
        ...

    def bookmark(self) -> Any:
        """The point where this chat stands, for :meth:`fork`; it stays good when the chat goes on, in new segments
        too."""
        ...

    def fork(self, turns: int | None = None, *, at: Any = None) -> Chat:
        """Another chat that shares the first ``turns`` turns of this one's segment (``None``: all of it), or all up to
        a bookmark, and goes on in a segment of its own, of origin ``branch``. Turns count prompt, replies and
        observations alike."""
        ...

    def note(self, text: str) -> None: ...

    def trajectory(self) -> Trajectory:
        """The trajectory of the whole job so far."""
        ...
