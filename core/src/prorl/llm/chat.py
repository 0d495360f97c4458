"""A conversation with the policy on one token stream: the :class:`~prorl.api.llm.Chat` that handlers are given.

The state is the ledger. ``open`` renders the prompt, ``reply`` samples after exactly the ids so far, ``observe`` adds
only what the template puts between. A backend may change from turn to turn (new weights, a dead server); a tokenizer
may not, since the stream would have to be encoded again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

import msgspec

from prorl.api.errors import ConfigError, ContextOverflow, ModelFault, TaskFault
from prorl.api.llm import EngineInfo, Generation, Message, Reply, Tokenizer, ToolSchema
from prorl.llm.failover import FailoverTokenizer
from prorl.llm.ledger import Ledger, RenderedRole
from prorl.llm.rendering import Renderer
from prorl.llm.template import ChatTemplate
from prorl.llm.tokenizers import LocalTokenizer
from prorl.wire.sampling import SamplingParams
from prorl.wire.trajectory import Trajectory

T = TypeVar("T")
_ATTEMPTS = 4


class ChatBackend(Protocol):
    """What a chat needs of :class:`prorl.llm.backend.Backend`."""

    @property
    def url(self) -> str: ...

    @property
    def info(self) -> EngineInfo: ...

    async def tokenizer(self) -> Tokenizer: ...


class SampledReply(Protocol):
    """What a chat needs of :class:`prorl.llm.lease.Sampled`."""

    @property
    def generation(self) -> Generation: ...

    @property
    def backend(self) -> str: ...

    @property
    def policy_version(self) -> str: ...

    @property
    def ms(self) -> float: ...


class ChatLease(Protocol):
    """What a chat needs of :class:`prorl.llm.lease.Lease`."""

    async def ready(self) -> ChatBackend: ...

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> SampledReply: ...

    def lost(self, backend: Any, reason: str) -> None: ...


class RendererCache:
    """Renderers by tokenizer and template; whoever owns the pool owns one. ``variables`` are switches that templates
    know (``enable_thinking``). A renderer outlives the engine it was made with: ``get`` offers it the next one's
    tokenizer."""

    def __init__(self, variables: dict[str, Any] | None = None) -> None:
        self._variables = variables or {}
        self._renderers: dict[tuple[str, str], asyncio.Task[Renderer]] = {}
        self._tokenizers: dict[str, FailoverTokenizer] = {}

    async def get(self, backend: ChatBackend) -> Renderer:
        """Raises ``ModelFault`` when the backend's template or tokenizer cannot be used."""
        tokenizer = await _tokenizer(backend)
        source, special = backend.info.chat_template, backend.info.special_tokens
        if isinstance(tokenizer, LocalTokenizer):
            source, special = tokenizer.chat_template or source, {**special, **tokenizer.special_tokens}
        if source is None:
            raise ModelFault(
                f"{backend.url} names no chat template; register it with a tokenizer folder or hub name that has one",
                code="template",
            )
        shared = self._tokenizers.setdefault(tokenizer.digest, FailoverTokenizer(tokenizer))
        shared.offer(tokenizer)
        key = (tokenizer.digest, source)
        task = self._renderers.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            template = ChatTemplate(source, variables={**special, **self._variables})
            task = self._renderers[key] = asyncio.ensure_future(Renderer.create(template, shared))
        return await asyncio.shield(task)  # others wait for the same one


class ChatSession:
    """Implements :class:`prorl.api.llm.Chat`. For one caller at a time.

    ``spend(model_s=...)`` accounts the time of model calls; ``emit(kind, **data)`` tells the job's watchers.
    """

    def __init__(
        self,
        lease: ChatLease,
        *,
        sampling: SamplingParams,
        renderers: RendererCache,
        spend: Callable[..., None] | None = None,
        emit: Callable[..., None] | None = None,
    ) -> None:
        self._lease = lease
        self._sampling = sampling
        self._renderers = renderers
        self._spend = spend
        self._emit = emit
        self._now = datetime.now(UTC).astimezone()
        self._ledger = Ledger()
        self._renderer: Renderer | None = None
        self._replies = 0
        self._may_reply = self._may_observe = False
        self._thinking = False
        self._last_id: int | None = None

    async def open(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> None:
        if self._renderer is not None:
            raise TaskFault("this chat is open already; ask the services for another one", code="chat")
        rendered, renderer, backend = await self._with_renderer(
            lambda renderer: renderer.prompt(messages, tools, now=self._now)
        )
        self._thinking = rendered.opens_thinking
        self._renderer = renderer
        tokenizer = await _tokenizer(backend)
        source = getattr(tokenizer, "source", f"{backend.info.dialect}:{backend.info.model}")
        self._ledger = Ledger(
            model=backend.info.model,
            tokenizer=f"{source}#{renderer.tokenizer.digest}",
            template=f"{source}#{renderer.template.digest}",
        )
        self._ledger.new_segment(rendered.ids, text=rendered.text)
        self._may_reply = True
        self._tell("chat.open", tokens=len(rendered.ids))
        self._room(backend)

    async def reply(self, *, max_tokens: int | None = None) -> Reply:
        self._require_open()
        if not self._may_reply:
            raise TaskFault("the model has ended its turn: observe() something before the next reply()", code="chat")
        backend = await self._lease.ready()
        renderer = await self._same_renderer(backend)
        sampling = self._for_turn(backend, renderer, min(max_tokens or self._sampling.max_tokens, self._room(backend)))
        self._may_reply = False
        try:
            sampled = await self._lease.generate(self._ledger.ids, sampling)
            if sampled.backend != backend.url:  # it died, and the call was made elsewhere
                await self._same_renderer(await self._lease.ready())
            reply = await self._append(sampled, stops=sampling.stop_token_ids)
        except BaseException:
            self._may_reply = True  # nothing was appended: the call may be made again
            raise
        if self._spend is not None:
            self._spend(model_s=sampled.ms / 1000)
        self._tell(
            "chat.reply",
            turn=self._replies,
            tokens=reply.tokens,
            finish=reply.finish,
            tools=[call.name for call in reply.tool_calls],
            ms=sampled.ms,
        )
        return reply

    async def observe(self, messages: Sequence[Message], *, ms: float = 0.0) -> None:
        self._require_open()
        if not self._may_observe:
            raise TaskFault("observe() comes after a reply(), once, with all messages", code="chat")
        rendered, _, _ = await self._with_renderer(
            lambda renderer: renderer.between(messages, previous_ended_with=self._last_id, now=self._now)
        )
        self._thinking = rendered.opens_thinking
        role: RenderedRole = "tool" if any(message.role == "tool" for message in messages) else "user"
        self._ledger.append_rendered(rendered.ids, role=role, text=rendered.text, ms=ms)
        self._may_reply, self._may_observe = True, False
        self._tell("chat.observe", role=role, tokens=len(rendered.ids), ms=ms)

    def note(self, text: str) -> None:
        self._ledger.note(text)

    def trajectory(self) -> Trajectory:
        return self._ledger.trajectory()

    async def _append(self, sampled: SampledReply, *, stops: Sequence[int]) -> Reply:
        generation = sampled.generation
        ids = generation.token_ids
        said = ids[:-1] if ids and ids[-1] in stops else ids
        text, renderer, _ = await self._with_renderer(lambda renderer: renderer.tokenizer.decode(said))
        parsed = renderer.tool_format.parse(text, thinking=self._thinking)
        self._ledger.append_sampled(
            generation,
            backend=sampled.backend,
            policy_version=sampled.policy_version,
            text=text,
            tool_calls=parsed.tool_calls,
            ms=sampled.ms,
        )
        self._thinking = parsed.thinking
        self._replies += 1
        self._last_id = ids[-1] if ids else None
        self._may_observe = True
        self._may_reply = generation.finish != "stop"  # a reply that was cut may go on where it stopped
        return Reply(
            text=text,
            answer=parsed.answer,
            tool_calls=parsed.tool_calls,
            finish=generation.finish,
            tokens=len(ids),
        )

    def _room(self, backend: ChatBackend) -> int:
        """Tokens that the context still takes, at least 1."""
        used, limit = len(self._ledger), backend.info.max_context
        if used >= limit:
            raise ContextOverflow(f"{used} tokens leave no room for a reply: {backend.url} takes {limit}")
        return limit - used

    def _for_turn(self, backend: ChatBackend, renderer: Renderer, max_tokens: int) -> SamplingParams:
        stops = (*self._sampling.stop_token_ids, *backend.info.eos_token_ids, renderer.end_of_turn)
        seed = self._sampling.seed
        return msgspec.structs.replace(
            self._sampling,
            max_tokens=max_tokens,
            stop_token_ids=tuple(dict.fromkeys(stops)),
            seed=None if seed is None else seed + self._replies,
        )

    async def _with_renderer(self, work: Callable[[Renderer], Awaitable[T]]) -> tuple[T, Renderer, ChatBackend]:
        """Text to ids or back. Where the tokenizer is an engine's own, that engine may be gone by then: the next one is
        asked, as for a reply."""
        for attempt in range(1, _ATTEMPTS + 1):
            backend = await self._lease.ready()
            try:
                renderer = await self._same_renderer(backend)
                return await work(renderer), renderer, backend
            except ModelFault as fault:
                if fault.code != "unreachable" or attempt == _ATTEMPTS:
                    raise
                self._lease.lost(backend, str(fault))
        raise AssertionError("the loop returns or raises")

    async def _same_renderer(self, backend: ChatBackend) -> Renderer:
        """The conversation's renderer, with this backend's tokenizer at hand; its own one once it is open."""
        renderer = await self._renderers.get(backend)
        if self._renderer is None:
            return renderer
        now, before = renderer.tokenizer.digest, self._renderer.tokenizer.digest
        if now != before:
            raise ModelFault(
                f"{backend.url} has another tokenizer than the one this conversation began with ({now}, was {before})",
                code="tokenizer_changed",
            )
        return self._renderer

    def _require_open(self) -> None:
        if self._renderer is None:
            raise TaskFault("open() the chat first", code="chat")

    def _tell(self, kind: str, **data: Any) -> None:
        if self._emit is not None:
            self._emit(kind, **data)


async def _tokenizer(backend: ChatBackend) -> Tokenizer:
    try:
        return await backend.tokenizer()
    except ConfigError as error:  # the trainer named a folder that does not work: this rollout cannot mend it
        raise ModelFault(f"the tokenizer of {backend.url} cannot be loaded: {error}", code="tokenizer") from error
