"""A conversation with the policy on one token stream: the :class:`~prorl.api.llm.Chat` that handlers are given.

The state is the ledger's stream. ``open`` renders the prompt, ``reply`` samples after exactly the ids so far,
``observe`` adds only what the template puts between. A backend may change from turn to turn (new weights, a dead
server); a tokenizer may not, since the stream would have to be encoded again.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from prorl.api.errors import ContextOverflow, ModelFault, TaskFault
from prorl.api.llm import Conversation, Message, Reply, ToolSchema
from prorl.llm.chat.history import KEPT, REWRITTEN, joined, sound
from prorl.llm.chat.ledger import Stream
from prorl.llm.chat.place import Bookmark, Place
from prorl.llm.chat.setup import ChatSetup, SampledReply
from prorl.llm.rendering.cache import AnyRenderer, RenderedFor, source_of
from prorl.llm.rendering.scaffold import clean
from prorl.llm.rendering.source import RenderedRole
from prorl.llm.rendering.textual import Owed
from prorl.llm.toolformats.reading import checked
from prorl.wire.sampling import SamplingParams
from prorl.wire.trajectory import SegmentOrigin, Trajectory

T = TypeVar("T")
_ATTEMPTS = 4
_SEEDS = 1_000_003  # from one segment to the next: two samples of one prompt must not be the same draw


class ChatSession:
    """Implements :class:`prorl.api.llm.Chat`. For one caller at a time; its forks are chats of their own."""

    def __init__(self, setup: ChatSetup, *, agent: str = "") -> None:
        self._setup = setup
        self._agent = clean(agent)
        self._tools: tuple[ToolSchema, ...] = ()
        self._messages: list[Message] = []
        self._stream: Stream | None = None
        self._renderer: AnyRenderer | None = None
        self._context = 0
        self._at = Place()
        self._places: list[Place] = []
        self._noted = False

    @property
    def room(self) -> int:
        return max(0, self._context - self.tokens)

    @property
    def tokens(self) -> int:
        return 0 if self._stream is None else len(self._stream)

    @property
    def messages(self) -> Sequence[Message]:
        return tuple(self._messages)

    async def measure(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> int:
        rendered, _, _ = await self._with_renderer(lambda each: each.prompt(messages, tools, now=self._setup.now))
        return len(rendered.ids)

    async def open(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> None:
        if self._stream is not None:
            raise TaskFault("this chat is open already; ask the services for another one", code="chat")
        self._tools = tuple(tools)
        await self._begin(messages, origin="open", keep_free=1)

    async def reply(self, *, max_tokens: int | None = None) -> Reply:
        stream = self._opened()
        if not self._at.may_reply:
            raise TaskFault("the model has ended its turn: observe() something before the next reply()", code="chat")
        setup, place = self._setup, self._at
        backend = await setup.lease.ready()
        renderer = await self._same_renderer(backend)
        room = self._check_room(backend)
        sampling = self._for_turn(backend, renderer, stream, min(max_tokens or setup.sampling.max_tokens, room))
        conversation = Conversation(messages=tuple(self._messages), tools=self._tools, prefix=place.prefix)
        self._at = msgspec.structs.replace(place, may_reply=False)
        try:
            prompt = stream.ids
            sampled = await setup.lease.generate(prompt, sampling, conversation=conversation)
            if sampled.backend != backend.url:  # it died, and the call was made elsewhere
                await self._same_renderer(await setup.lease.ready())
            reply = await self._append(stream, sampled, after=prompt, sampling=sampling)
        except BaseException:
            self._at = place  # nothing was appended: the call may be made again
            raise
        if setup.spend is not None:
            setup.spend(model_s=sampled.ms / 1000)
        self._tell(
            "chat.reply",
            turn=self._at.replies,
            tokens=reply.tokens,
            finish=reply.finish,
            tools=[call.name for call in reply.tool_calls],
            ms=sampled.ms,
        )
        return reply

    async def observe(self, messages: Sequence[Message], *, ms: float = 0.0, keep_free: int = 1) -> None:
        stream, place = self._opened(), self._at
        if not place.may_observe:
            raise TaskFault("observe() comes after a reply(), once, with all messages", code="chat")
        if not math.isfinite(ms):
            raise TaskFault(f"observe() takes milliseconds, not {ms}", code="chat")
        messages = sound(messages)
        rendered, renderer, backend = await self._with_renderer(
            lambda renderer: renderer.between(messages, previous_ended_with=place.last_id, now=self._setup.now)
        )
        if await self._rewrites(renderer, messages):
            await self.restart(
                [*joined(self._messages), *messages], origin="rewrite", note=REWRITTEN, keep_free=keep_free
            )
            return
        self._context = backend.info.max_context
        if (left := self.room - len(rendered.ids)) < keep_free:
            raise ContextOverflow(
                f"{len(stream)} tokens and an observation of {len(rendered.ids)} leave {max(left, 0)} for a reply, "
                f"which needs {keep_free}: {backend.url} takes {self._context}",
                needed=len(rendered.ids),
            )
        role: RenderedRole = "tool" if any(message.role == "tool" for message in messages) else "user"
        owed = Owed(role, rendered.text, ms) if backend.info.takes == "messages" else None
        if owed is None:
            stream.append_rendered(rendered.ids, role=role, text=rendered.text, ms=ms)
        self._messages += messages
        self._move(thinking=rendered.opens_thinking, may_reply=True, may_observe=False, owed=owed)
        self._tell("chat.observe", role=role, tokens=len(rendered.ids), ms=ms)

    async def restart(
        self, messages: Sequence[Message], *, origin: SegmentOrigin, note: str = "", keep_free: int = 1
    ) -> None:
        stream = self._opened()
        await self._begin(messages, origin=origin, keep_free=keep_free)
        self._setup.ledger.note(f"segment {self._opened().index} ({origin}, after {stream.index}): {note}".rstrip(": "))

    def bookmark(self) -> Bookmark:
        return Bookmark(self._opened(), self._places, len(self._places), self._messages)

    def fork(self, turns: int | None = None, *, at: Bookmark | None = None) -> ChatSession:
        if at is not None:
            return self._branch(at)
        mark = self.bookmark()
        if turns is not None and not 1 <= turns <= len(self._places):
            raise TaskFault(f"this chat has {len(self._places)} turns in its segment, not {turns}", code="chat")
        return self._branch(mark if turns is None else msgspec.structs.replace(mark, turns=turns))

    def note(self, text: str) -> None:
        self._setup.ledger.note(text)

    def trajectory(self) -> Trajectory:
        return self._setup.ledger.trajectory()

    def _branch(self, at: Bookmark) -> ChatSession:
        kept = at.places[: at.turns]
        twin = ChatSession(self._setup, agent=self._agent)
        twin._tools, twin._renderer, twin._context = self._tools, self._renderer, self._context
        twin._places, twin._at, twin._noted = kept, kept[-1], self._noted
        twin._messages = at.messages[: kept[-1].messages]
        twin._stream = self._setup.ledger.branch(at.stream, kept[-1].length)
        return twin

    async def _rewrites(self, renderer: AnyRenderer, messages: Sequence[Message]) -> bool:
        """Whether the template shows earlier turns in another way now, and the job wants them so."""
        now = self._setup.now
        if self._setup.rendering.history == "segment":
            past = joined(self._messages)
            found, _, _ = await self._with_renderer(lambda each: each.rewrites(past, messages, self._tools, now=now))
            return found
        if not self._noted and await renderer.forgets(messages, reasoned=self._at.reasoned, now=now):
            self._noted = True
            self.note(KEPT)
        return False

    async def _begin(self, messages: Sequence[Message], *, origin: SegmentOrigin, keep_free: int = 0) -> None:
        """A new segment, with a prompt of its own. Nothing has changed when ``keep_free`` tokens are not left."""
        messages = sound(messages)
        rendered, renderer, backend = await self._with_renderer(
            lambda renderer: renderer.prompt(messages, self._tools, now=self._setup.now)
        )
        self._context = backend.info.max_context
        if keep_free and self._context - len(rendered.ids) < keep_free:
            raise ContextOverflow(
                f"a new beginning of {len(rendered.ids)} tokens does not leave {keep_free} for a reply: "
                f"{backend.url} takes {self._context}",
                needed=len(rendered.ids),
            )
        owed = Owed("prompt", rendered.text) if backend.info.takes == "messages" else None
        self._renderer = renderer
        self._stream = self._setup.ledger.open(
            rendered.ids if owed is None else None,
            text=rendered.text,
            source=await source_of(backend, renderer),
            origin=origin,
            parent=self._stream,
            agent=self._agent,
        )
        self._messages = messages
        self._places = []
        self._at = Place(replies=self._at.replies)
        self._move(thinking=rendered.opens_thinking, may_reply=True, owed=owed)
        self._tell("chat.open", tokens=len(rendered.ids))
        self._check_room(backend)

    async def _append(
        self, stream: Stream, sampled: SampledReply, *, after: Sequence[int], sampling: SamplingParams
    ) -> Reply:
        generation = sampled.generation
        ids = generation.token_ids
        said = ids[:-1] if ids and ids[-1] in sampling.stop_token_ids else ids
        text, renderer, backend = await self._with_renderer(lambda renderer: renderer.tokenizer.decode(said))
        text = text if generation.text is None else generation.text
        parsed = renderer.tool_format.parse(text, thinking=self._at.thinking, tools=self._tools)
        if generation.tool_calls is not None:
            calls = [checked(call, renderer.tool_format.how) for call in generation.tool_calls]
            parsed = msgspec.structs.replace(parsed, tool_calls=calls)
        if self._at.owed is not None:
            stream = self._append_owed(stream, self._at.owed, sampled)
            after = stream.ids
        stream.append_sampled(
            generation,
            after=after,
            backend=sampled.backend,
            policy_version=sampled.policy_version,
            text=text,
            tool_calls=parsed.tool_calls,
            sampling=sampling,
            ms=sampled.ms,
        )
        self._messages.append(Message(role="assistant", content=parsed.content, tool_calls=tuple(parsed.tool_calls)))
        self._move(
            prefix=len(stream),
            replies=self._at.replies + 1,
            last_id=ids[-1] if ids else None,
            thinking=parsed.thinking,
            reasoned=self._at.reasoned or bool(parsed.reasoning.strip()) or parsed.thinking,
            # a reply that was cut may go on where it stopped, if the engine takes ids
            may_reply=generation.finish != "stop" and backend.info.takes == "ids",
            may_observe=True,
            owed=None,
        )
        return Reply(
            text=text,
            answer=parsed.answer,
            reasoning=parsed.reasoning,
            tool_calls=parsed.tool_calls,
            finish=generation.finish,
            tokens=len(ids),
        )

    def _append_owed(self, stream: Stream, owed: Owed, sampled: SampledReply) -> Stream:
        """What the engine rendered itself: the end of the prompt that its reply echoes. Where that does not go on from
        what is recorded, the engine has rendered the past anew, and a segment begins."""
        echo = sampled.generation.prompt_echo
        if echo is None:
            self._setup.ledger.not_trainable(f"{sampled.backend} returns text without token ids")
            echo = stream.ids
        if echo[: len(stream)] == stream.ids:
            stream.append_rendered(echo[len(stream) :], role=owed.role, text=owed.text, ms=owed.ms)
            return stream
        renewed = self._setup.ledger.open(echo, text=owed.text, origin="rewrite", parent=stream, agent=self._agent)
        self._setup.ledger.note(f"segment {renewed.index} (rewrite, after {stream.index}): as the engine rendered it")
        self._stream, self._places = renewed, []
        self._move(owed=None)
        return renewed

    def _move(self, **changes: Any) -> None:
        """One turn further."""
        self._at = msgspec.structs.replace(self._at, length=self.tokens, messages=len(self._messages), **changes)
        self._places.append(self._at)

    def _check_room(self, backend: RenderedFor) -> int:
        """Tokens that the context still takes, at least 1."""
        self._context = backend.info.max_context
        if not self.room:
            raise ContextOverflow(
                f"{self.tokens} tokens leave no room for a reply: {backend.url} takes {self._context}"
            )
        return self.room

    def _for_turn(self, backend: RenderedFor, renderer: AnyRenderer, stream: Stream, max_tokens: int) -> SamplingParams:
        sampling = self._setup.sampling
        stops = (*sampling.stop_token_ids, *backend.info.eos_token_ids, *renderer.turn_ends)
        return msgspec.structs.replace(
            sampling,
            max_tokens=max_tokens,
            stop_token_ids=tuple(dict.fromkeys(token for token in stops if token >= 0)),
            seed=None if sampling.seed is None else sampling.seed + self._at.replies + stream.index * _SEEDS,
        )

    async def _with_renderer(self, work: Callable[[AnyRenderer], Awaitable[T]]) -> tuple[T, AnyRenderer, RenderedFor]:
        """Text to ids or back. Where the tokenizer is an engine's own, that engine may be gone by then: the next one is
        asked, as for a reply."""
        for attempt in range(1, _ATTEMPTS + 1):
            backend = await self._setup.lease.ready()
            try:
                renderer = await self._same_renderer(backend)
                return await work(renderer), renderer, backend
            except ModelFault as fault:
                if fault.code != "unreachable" or attempt == _ATTEMPTS:
                    raise
                self._setup.lease.lost(backend, str(fault))
        raise AssertionError("the loop returns or raises")

    async def _same_renderer(self, backend: RenderedFor) -> AnyRenderer:
        """The conversation's renderer, with this backend's tokenizer at hand; its own one once it is open."""
        renderer = await self._setup.renderers.get(backend, self._setup.rendering)
        if self._renderer is None:
            return renderer
        now, before = renderer.tokenizer.digest, self._renderer.tokenizer.digest
        if now != before:
            raise ModelFault(
                f"{backend.url} has another tokenizer than the one this conversation began with ({now}, was {before})",
                code="tokenizer_changed",
            )
        return self._renderer

    def _opened(self) -> Stream:
        if self._stream is None:
            raise TaskFault("open() the chat first", code="chat")
        return self._stream

    def _tell(self, kind: str, **data: Any) -> None:
        if self._setup.emit is not None:
            self._setup.emit(kind, **data, **({"agent": self._agent} if self._agent else {}))
