"""From messages to ids: a prompt once, and then only what the template puts *between* one reply and the next.

``between`` renders a made-up conversation (user, assistant, the new messages), cuts it after the end-of-turn token that
closes the assistant's part, and encodes only the rest. A reply that did not end with that token (cut by length, or by
another stop token) gets it first. Nothing that was rendered or sampled before is looked at again, so templates that
rewrite history (Qwen3 drops earlier thinking) cannot change it, and no token ever spans the seam.

Bodies never pass through the template (see :mod:`prorl.llm.rendering.outline` and
:mod:`prorl.llm.rendering.scaffold`), so one rendering serves every conversation of the same shape.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Any

import msgspec

from prorl.api.errors import ModelFault, TaskFault
from prorl.api.llm import Message, Tokenizer, ToolSchema
from prorl.llm.rendering.manners import EPOCH, manners_of
from prorl.llm.rendering.outline import Outline
from prorl.llm.rendering.scaffold import Piece, Run, Scaffolder, Slot, cut
from prorl.llm.rendering.template import ChatTemplate
from prorl.llm.toolformats import ToolFormat, choose, function_form
from prorl.llm.toolformats.base import TemplateRefusal

_KEPT_SHAPES = 256
_MANY = 500  # messages; beyond this a rendering takes a tenth of a second, for which the loop must not stand still
_LARGE = 1_000_000  # characters; ids take many times the memory of their text, so these are encoded one at a time
_MADE_UP = (Message(role="user", content="?"), Message(role="assistant", content="?"))
_REASONED = Message(role="assistant", content="<think>\n?\n</think>\n\n?")
_NO_SYSTEM = Message(role="system", content="")
# Besides the token that a template closes a reply with. Llama 3: a call that waits for its result ends with this one.
_ALSO_ENDS = ("<|eom_id|>",)

Tools = Sequence[Mapping[str, Any]] | None


class Rendered(msgspec.Struct, frozen=True):
    """Ids to append, and their text for people. ``opens_thinking``: the reply begins inside a ``<think>`` block."""

    ids: list[int]
    text: str
    opens_thinking: bool


class Shape(msgspec.Struct, frozen=True):
    """A prepared rendering: fill in the bodies, in the order in which they were probed."""

    runs: tuple[Run, ...]
    opens_thinking: bool


class Renderer:
    """Made by :meth:`create`. ``end_of_turn`` is the id that closes an assistant message, ``turn_ends`` all that count
    as having closed it; ``tool_format`` is the convention by which calls are described and parsed. ``now`` is the
    moment that templates with a date in them show: pass the same one for a whole trajectory.
    """

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, tool_format: ToolFormat) -> None:
        self.template = template
        self.tokenizer = tokenizer
        self.tool_format = tool_format
        self.end_of_turn = -1
        self.end_of_turn_text = ""
        self.turn_ends: tuple[int, ...] = ()
        self._scaffolder = Scaffolder(tokenizer)
        self._manners = manners_of(template, tool_format)
        self._shapes: dict[Any, Shape] = {}
        self._forgetting: dict[Any, bool] = {}
        self._large = asyncio.Lock()

    @classmethod
    async def create(
        cls, template: ChatTemplate, tokenizer: Tokenizer, *, tool_format: ToolFormat | None = None
    ) -> Renderer:
        """Learn the template's ways by rendering. Raises ``ModelFault`` when template or tokenizer cannot be used."""
        renderer = cls(template, tokenizer, tool_format or choose(None, template))
        await renderer._scaffolder.check()
        await renderer._check_variables()
        renderer.end_of_turn, renderer.end_of_turn_text = await renderer._find_end_of_turn()
        also = [await renderer._scaffolder.control(text) for text in _ALSO_ENDS if text in template.source]
        renderer.turn_ends = (renderer.end_of_turn, *(token for token in also if token is not None))
        return renderer

    async def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), *, now: datetime) -> Rendered:
        """The whole prompt, up to where the assistant speaks. Raises ``TaskFault`` if the template refuses."""
        if not messages or messages[-1].role == "assistant":
            raise TaskFault(
                "a chat opens with messages after which the assistant speaks; the last one may not be an assistant's "
                "(to have a reply begin with given words is not supported)",
                code="chat",
            )
        outline, own = await self._outline(messages[0], tools)
        outline.add(messages)
        key = None if outline.key is None else (tuple(outline.key), msgspec.json.encode(tools))
        return await self._rendered(outline, own, key=key, between=False, now=now)

    async def between(self, messages: Sequence[Message], *, previous_ended_with: int | None, now: datetime) -> Rendered:
        """What comes after a reply whose last sampled id was ``previous_ended_with`` (``None``: it had none)."""
        if any(message.role == "assistant" for message in messages) or not messages:
            raise TaskFault("between replies go messages of the user, the system or tools, at least one", code="chat")
        outline = Outline(self._manners)
        outline.add([*_MADE_UP, *messages])
        key = None if outline.key is None else tuple(outline.key)
        rendered = await self._rendered(outline, None, key=key, between=True, now=now)
        if previous_ended_with in self.turn_ends:
            return rendered
        return msgspec.structs.replace(
            rendered, ids=[self.end_of_turn, *rendered.ids], text=self.end_of_turn_text + rendered.text
        )

    async def rewrites(
        self, messages: Sequence[Message], observed: Sequence[Message], tools: Sequence[ToolSchema], *, now: datetime
    ) -> bool:
        """Whether the template, given a conversation that ends with a reply and then what was observed, shows anything
        before the observation in another way than the stream has it: renders of text are compared, probes in place of
        bodies. False where the template would not render the whole of it."""
        outline, own = await self._outline(messages[0], tools)
        outline.add(messages[:-1])
        upto, first = len(outline.messages), len(outline.probes)
        outline.add(messages[-1:])
        reply = outline.probes[first:]
        outline.add(observed)
        try:
            earlier = self.template.render(outline.messages[:upto], tools=own, now=now)
            later = self.template.render(outline.messages, tools=own, now=now)
        except TemplateRefusal:
            return False
        return not later.startswith(earlier) or any(probe.start not in later for probe in reply)

    async def forgets(self, observed: Sequence[Message], *, reasoned: bool, now: datetime) -> bool:
        """As :meth:`rewrites`, at a cost that does not grow with the conversation: of a made-up one, in which the
        reply held thinking or did not (``reasoned``)."""
        key = reasoned, tuple(message.role for message in observed)
        if key not in self._forgetting:
            if len(self._forgetting) >= _KEPT_SHAPES:
                self._forgetting.clear()
            user, reply = _MADE_UP
            self._forgetting[key] = await self.rewrites([user, _REASONED if reasoned else reply], observed, (), now=now)
        return self._forgetting[key]

    async def _outline(self, first: Message, tools: Sequence[ToolSchema]) -> tuple[Outline, Tools]:
        """An empty outline, and the tools as the template is given them (``None``: it is not)."""
        outline = Outline(self._manners)
        covered = [await self._covered(tool, outline) for tool in tools]
        if not covered or self._manners.tools:
            return outline, [function_form(tool) for tool in covered] or None
        outline.describe(covered)
        if first.role != "system":
            outline.add([_NO_SYSTEM])
        return outline, None

    async def _covered(self, tool: ToolSchema, outline: Outline) -> ToolSchema:
        """Templates look at the words of a schema; only those that would come out as control tokens are hidden."""

        async def cover(value: Any) -> Any:
            match value:
                case str():
                    return outline.body(value, None) if await self._risky(value) else value
                case Mapping():
                    return {await cover(key): await cover(item) for key, item in value.items()}
                case list() | tuple():
                    return [await cover(item) for item in value]
            return value

        return ToolSchema(**await cover(msgspec.to_builtins(tool)))

    async def _risky(self, text: str) -> bool:
        if await self._scaffolder.first_control(text) is not None:
            return True
        return self.template.makes_tags and await self._scaffolder.control(f"<{text}>") is not None

    async def _rendered(self, outline: Outline, tools: Tools, *, key: Any, between: bool, now: datetime) -> Rendered:
        full = (between, key, now if self.template.uses_date else None)
        shape = None if key is None else self._shapes.get(full)
        if shape is None:
            shape = await self._prepare(outline, tools, between=between, now=now)
            if key is not None:
                if len(self._shapes) >= _KEPT_SHAPES:
                    self._shapes.clear()
                self._shapes[full] = shape
        async with self._large if sum(map(len, outline.bodies)) > _LARGE else nullcontext():
            ids, text = await self._scaffolder.fill(shape.runs, outline.bodies)
        return Rendered(ids, text, shape.opens_thinking)

    async def _prepare(self, outline: Outline, tools: Tools, *, between: bool, now: datetime) -> Shape:
        if len(outline.messages) < _MANY:
            text, pieces = self._cut(outline, tools, between=between, now=now)
        else:
            text, pieces = await asyncio.to_thread(self._cut, outline, tools, between=between, now=now)
        if between:
            end, *runs = await self._scaffolder.build((await self._close_of_reply(pieces, slot=1))[1])
            # Encoded with the token that closes the reply, which may swallow the space after it, and then without it.
            if end.ids[:1] != (self.end_of_turn,):
                raise ModelFault("the chat template closes replies in more than one way", code="template")
            end = Run(end.text.removeprefix(self.end_of_turn_text), end.ids[1:])
            runs = [end, *runs] if end.ids else runs
        else:
            runs = await self._scaffolder.build(pieces)
        return Shape(tuple(runs), text.rstrip().endswith("<think>"))

    def _cut(self, outline: Outline, tools: Tools, *, between: bool, now: datetime) -> tuple[str, list[Piece]]:
        """The rendered text, and the same cut at the probes. Arguments of calls are given as objects; where the
        template does not take them, as text."""
        faults: list[ModelFault | TaskFault] = []
        for messages in outline.ways():
            try:
                return self._cut_once(outline, messages, tools, own=len(_MADE_UP) * between, now=now)
            except (ModelFault, TaskFault) as fault:
                faults.append(fault)
        raise faults[0]

    def _cut_once(
        self, outline: Outline, messages: Sequence[Mapping[str, Any]], tools: Tools, *, own: int, now: datetime
    ) -> tuple[str, list[Piece]]:
        """``own`` counts made-up messages, of one body each, that nobody wrote."""
        try:
            text = self.template.render(messages, tools=tools, now=now)
        except TemplateRefusal as error:
            roles = ", ".join(message["role"] for message in messages[own:])
            raise TaskFault(f"the chat template refuses messages of {roles}: {error}", code="template") from error
        pieces, missing = cut(text, outline.probes)
        for owner in (outline.owners[i] for i in missing if i >= own):
            if owner is not None:
                raise TaskFault(f"the chat template leaves out the message of role {owner}", code="template")
        return text, pieces

    async def _close_of_reply(self, pieces: list[Piece], *, slot: int) -> tuple[str, list[Piece]]:
        """The first control token after the reply that stands in ``slot``, and the pieces from there on."""
        at = next((i for i, piece in enumerate(pieces) if isinstance(piece, Slot) and piece.index == slot), len(pieces))
        tail = pieces[at + 1 :]
        head = tail[0] if tail and isinstance(tail[0], str) else ""
        found = await self._scaffolder.first_control(head)
        if found is None:
            raise ModelFault("the chat template does not close a reply with a token of its own", code="template")
        token, start = found
        return token, [head[start:], *tail[1:]]

    async def _find_end_of_turn(self) -> tuple[int, str]:
        outline = Outline(self._manners)
        outline.add([*_MADE_UP, _MADE_UP[0]])
        try:
            text = self.template.render(outline.messages, now=EPOCH)
        except TemplateRefusal as error:
            raise ModelFault(f"the chat template refuses user, assistant, user: {error}", code="template") from error
        pieces, missing = cut(text, outline.probes)
        if missing:
            raise ModelFault("the chat template leaves out messages of a plain conversation", code="template")
        token, _ = await self._close_of_reply(pieces, slot=1)
        return (await self.tokenizer.encode(token, special=True))[0], token

    async def _check_variables(self) -> None:
        """A job's own values stand in the scaffold: as text, please."""
        values = msgspec.json.encode(self.template.chosen).decode()
        if (found := await self._scaffolder.first_control(values)) is not None:
            raise TaskFault(f"a value in rendering.variables holds the control token {found[0]}", code="rendering")
