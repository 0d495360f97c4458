"""From messages to ids: a prompt once, and then only what the template puts *between* one reply and the next.

``between`` renders a made-up conversation (user, assistant, the new messages), cuts it after the end-of-turn token that
closes the assistant's part, and encodes only the rest. A reply that did not end with that token (cut by length, or by
another stop token) gets it first. Nothing that was rendered or sampled before is looked at again, so templates that
rewrite history (Qwen3 drops earlier thinking) cannot change it, and no token ever spans the seam.

Bodies never pass through the template (see :mod:`prorl.llm.scaffold`), so one rendering serves every conversation of
the same shape.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from prorl.api.errors import ModelFault, TaskFault
from prorl.api.llm import Message, Tokenizer, ToolSchema
from prorl.llm.scaffold import Piece, Probe, Run, Scaffolder, Slot, cut
from prorl.llm.template import ChatTemplate, TemplateRefusal
from prorl.llm.toolcalls import HermesFormat, ToolFormat, function_form

_KEPT_SHAPES = 512
# Added tokens of many vocabularies. An encoder that makes them of untrusted text cannot be used.
_GUARDED = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


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
    """Made by :meth:`create`. ``end_of_turn`` is the id that closes an assistant message; ``tool_format`` the
    convention by which calls are described and parsed. ``now`` is the moment that templates with a date in them show:
    pass the same one for a whole trajectory.
    """

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, tool_format: ToolFormat) -> None:
        self.template = template
        self.tokenizer = tokenizer
        self.tool_format = tool_format
        self.end_of_turn = -1
        self.end_of_turn_text = ""
        self._scaffolder = Scaffolder(tokenizer)
        self._own_tools = self._teaches_tools()
        self._tool_role = self._knows_role("tool")
        self._shapes: dict[Any, Shape] = {}

    @classmethod
    async def create(
        cls, template: ChatTemplate, tokenizer: Tokenizer, *, tool_format: ToolFormat | None = None
    ) -> Renderer:
        """Learn the template's ways by rendering. Raises ``ModelFault`` when template or tokenizer cannot be used."""
        renderer = cls(template, tokenizer, tool_format or HermesFormat())
        await renderer._check_tokenizer()
        renderer.end_of_turn, renderer.end_of_turn_text = await renderer._find_end_of_turn()
        return renderer

    async def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), *, now: datetime) -> Rendered:
        """The whole opening prompt, up to where the assistant speaks. Raises ``TaskFault`` if the template refuses."""
        shape, bodies = await self._shape(messages, tools, now=now)
        ids, text = await self._scaffolder.fill(shape.runs, bodies)
        return Rendered(ids, text, shape.opens_thinking)

    async def between(self, messages: Sequence[Message], *, previous_ended_with: int | None, now: datetime) -> Rendered:
        """What comes after a reply whose last sampled id was ``previous_ended_with`` (``None``: it had none)."""
        if any(message.role == "assistant" for message in messages) or not messages:
            raise TaskFault("between replies go messages of the user, the system or tools, at least one", code="chat")
        shape, bodies = await self._shape(messages, None, now=now)
        ids, text = await self._scaffolder.fill(shape.runs, bodies)
        if previous_ended_with != self.end_of_turn:
            ids, text = [self.end_of_turn, *ids], self.end_of_turn_text + text
        return Rendered(ids, text, shape.opens_thinking)

    async def _shape(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] | None, *, now: datetime
    ) -> tuple[Shape, list[str]]:
        between = tools is None
        outline = _Outline(self.tool_format, wrap_tools=not self._tool_role)
        if between:
            outline.add_turn(Message(role="user", content="?"))
            outline.add_turn(Message(role="assistant", content="?"))
        described = bool(tools) and not self._own_tools
        if described:
            messages = messages if messages and messages[0].role == "system" else [_NO_SYSTEM, *messages]
            outline.describe = tools or ()
        outline.add(messages)
        key = (
            between,
            tuple((m.role, bool(m.content), bool(m.name)) for m in messages),
            msgspec.json.encode(tools) if tools else b"",
            now if self.template.uses_date else None,
        )
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= _KEPT_SHAPES:
                self._shapes.clear()
            own = [function_form(tool) for tool in tools] if tools and not described else None
            shape = self._shapes[key] = await self._prepare(outline, own, between=between, now=now)
        return shape, outline.bodies

    async def _prepare(
        self, outline: _Outline, tools: Sequence[Mapping[str, Any]] | None, *, between: bool, now: datetime
    ) -> Shape:
        try:
            text = self.template.render(outline.messages, tools=tools, now=now)
        except TemplateRefusal as error:
            roles = ", ".join(message["role"] for message in outline.messages[2 * between :])
            raise TaskFault(f"the chat template refuses messages of {roles}: {error}", code="template") from error
        pieces, missing = cut(text, outline.probes)
        # Of a body that stands where the template shows none (the name of a tool, mostly) only content matters.
        lost = [outline.owners[i] for i in missing if outline.owners[i] is not None and i >= 2 * between]
        if lost:
            raise TaskFault(f"the chat template leaves out the message of role {lost[0]}", code="template")
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
        outline = _Outline(self.tool_format, wrap_tools=True)
        for role in ("user", "assistant", "user"):
            outline.add_turn(Message(role=role, content="?"))
        try:
            text = self.template.render(outline.messages, now=_EPOCH)
        except TemplateRefusal as error:
            raise ModelFault(f"the chat template refuses user, assistant, user: {error}", code="template") from error
        pieces, missing = cut(text, outline.probes)
        if missing:
            raise ModelFault("the chat template leaves out messages of a plain conversation", code="template")
        token, _ = await self._close_of_reply(pieces, slot=1)
        return (await self.tokenizer.encode(token, special=True))[0], token

    async def _check_tokenizer(self) -> None:
        encode, decode = self.tokenizer.encode, self.tokenizer.decode
        a, b = await encode("a", special=False), await encode("b", special=False)
        if await decode([*a, *b]) != "ab":
            raise ModelFault(
                "this tokenizer puts a space before every piece of text, which cannot be appended exactly",
                code="tokenizer_unsupported",
            )
        for text in _GUARDED:
            if len(await encode(text, special=False)) == 1:
                raise ModelFault(
                    f"the engine's tokenizer makes a control token of {text} in untrusted text; "
                    "register the backend with a tokenizer folder or hub name",
                    code="tokenizer_unsafe",
                )

    def _teaches_tools(self) -> bool:
        """Whether the template describes tools itself, in the format in which calls will be parsed."""
        tool = function_form(ToolSchema(name=f"t{secrets.token_hex(8)}", description="", parameters={"type": "object"}))
        try:
            text = self.template.render([{"role": "user", "content": "?"}], tools=[tool], now=_EPOCH)
        except TemplateRefusal:
            return False
        return tool["function"]["name"] in text and self.tool_format.matches(text)

    def _knows_role(self, role: str) -> bool:
        """A template that takes any role's name as it comes was not made for this one."""
        start = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "?"}]
        body, other = secrets.token_hex(8), f"r{secrets.token_hex(8)}"
        try:
            known = self.template.render([*start, {"role": role, "content": body}], now=_EPOCH)
        except TemplateRefusal:
            return False
        if body not in known:
            return False
        try:
            unknown = self.template.render([*start, {"role": other, "content": body}], now=_EPOCH)
        except TemplateRefusal:
            return True
        return unknown.replace(other, role) != known


class _Outline:
    """A conversation with probes in place of its bodies. ``owners`` names the role whose content a probe stands for,
    ``None`` for a name."""

    def __init__(self, tool_format: ToolFormat, *, wrap_tools: bool) -> None:
        self.messages: list[dict[str, Any]] = []
        self.probes: list[Probe] = []
        self.bodies: list[str] = []
        self.owners: list[str | None] = []
        self.describe: Sequence[ToolSchema] = ()
        self._format = tool_format
        self._wrap_tools = wrap_tools

    def add(self, messages: Sequence[Message]) -> None:
        previous: str | None = None
        for message in messages:
            if message.role != "tool" or not self._wrap_tools:
                self.add_turn(message)
            else:
                wrapped = self._format.wrap_response(self._body(message.content, "tool"))
                if previous == "tool":
                    self.messages[-1]["content"] += "\n" + wrapped
                else:
                    self.messages.append({"role": "user", "content": wrapped})
            previous = message.role

    def add_turn(self, message: Message) -> None:
        turn = {"role": message.role, "content": self._body(message.content, message.role)}
        if message.role == "system" and self.describe:
            parts = (turn["content"], self._format.describe(self.describe))
            turn["content"] = "\n\n".join(part for part in parts if part)
            self.describe = ()
        if message.name:
            turn["name"] = self._body(message.name, None)
        self.messages.append(turn)

    def _body(self, body: str, owner: str | None) -> str:
        if not body:
            return ""  # templates ask whether there is any
        probe = Probe()
        self.probes.append(probe)
        self.bodies.append(body)
        self.owners.append(owner)
        return probe.text


_NO_SYSTEM = Message(role="system", content="")
_EPOCH = datetime(2000, 1, 1)  # noqa: DTZ001 - only to see how a template behaves
