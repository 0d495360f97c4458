"""A real byte-level tokenizer with the control tokens of two families, real templates, and a scripted lease."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tokenizers import AddedToken

from prorl.api.llm import Conversation, EngineInfo, Generation, Message, Tokenizer, ToolSchema
from prorl.llm.chat.ledger import Ledger
from prorl.llm.chat.session import ChatSession
from prorl.llm.chat.setup import ChatSetup
from prorl.llm.pool.lease import Sampled
from prorl.llm.rendering.cache import RendererCache
from prorl.llm.rendering.renderer import Renderer
from prorl.llm.rendering.source import Source
from prorl.llm.rendering.template import ChatTemplate
from prorl.llm.tokenizers.local import LocalTokenizer
from prorl.llm.toolformats import formats, function_form
from prorl.testing.bytebpe import build_tokenizer
from prorl.wire.sampling import SamplingParams
from prorl.wire.trajectory import VersionSpan

TEMPLATES = Path(__file__).parent / "templates"
HEADERS = (
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|python_tag|>",
    "<|end_of_text|>",
)


@dataclass(frozen=True)
class Family:
    """What was read in a template by eye: the closing token, what it can do by itself, and whether its prompt opens
    ``<think>``."""

    end: str = "<|im_end|>"
    format: str = "hermes"
    tools: bool = True
    tool_role: bool = True
    opens: bool = False


FAMILIES = {
    "qwen2.5": Family(),
    "qwen3": Family(),
    "qwen3-2507": Family(),
    "qwen3-2507-thinking": Family(opens=True),
    "qwen3-coder": Family(format="qwen3-coder"),
    "llama3.1": Family(end="<|eot_id|>", format="llama-json"),
    "smollm2": Family(tools=False, tool_role=False),
    "chatml": Family(tools=False, tool_role=False),
    "headers": Family(end="<|eot_id|>", tools=False),
}


@dataclass
class ScriptedBackend:
    """What a chat asks of a backend, without an engine."""

    tokens: Tokenizer
    info: EngineInfo
    url: str = "http://engine"

    async def tokenizer(self) -> Tokenizer:
        return self.tokens


@dataclass
class ScriptedLease:
    """Plays given replies, and keeps what it was asked."""

    backend: ScriptedBackend
    replies: list[Generation | Exception] = field(default_factory=list)
    asked: list[tuple[list[int], SamplingParams]] = field(default_factory=list)
    conversations: list[Conversation | None] = field(default_factory=list)

    def lost(self, backend: object, reason: str) -> None:
        raise AssertionError(f"a scripted backend is never lost ({reason})")

    async def ready(self) -> ScriptedBackend:
        return self.backend

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, conversation: Conversation | None = None
    ) -> Sampled:
        self.conversations.append(conversation)
        self.asked.append((list(prompt_ids), sampling))
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return Sampled(generation=reply, backend=self.backend.url, policy_version="v7", ms=2000.0)


class Kit:
    """What the tests of this folder build on."""

    now = datetime(2026, 3, 1, 12, tzinfo=UTC)
    families = FAMILIES

    def __init__(self) -> None:
        encoder = build_tokenizer()
        encoder.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in HEADERS])
        special = {"bos_token": HEADERS[0]}
        self.tokenizer = LocalTokenizer(encoder.to_str().encode(), source="bytebpe", special_tokens=special)
        self.renderers = RendererCache()
        self._templates: dict[tuple[str, str], ChatTemplate] = {}
        self._renderers: dict[tuple[str, str], Renderer] = {}
        self.added = {token.content: index for index, token in encoder.get_added_tokens_decoder().items()}

    def template(self, name: str, **variables: object) -> ChatTemplate:
        key = (name, repr(variables))
        if key not in self._templates:
            source = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
            template = ChatTemplate(source, variables=self.tokenizer.special_tokens)
            self._templates[key] = template.switched(variables=variables)
        return self._templates[key]

    async def renderer(self, name: str, **variables: object) -> Renderer:
        key = (name, repr(variables))
        if key not in self._renderers:
            self._renderers[key] = await Renderer.create(self.template(name, **variables), self.tokenizer)
        return self._renderers[key]

    def reference(
        self,
        name: str,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema] = (),
        *,
        generation_prompt: bool = True,
        **variables: object,
    ) -> str:
        """The template itself, given the real bodies; what it does not know, as its tool format has it."""
        family, turns = self.families[name], []
        form = formats()[family.format]
        for message in messages:
            turn: dict[str, object] = {"role": message.role, "content": message.content}
            if message.tool_calls and family.tools:
                calls = [{"function": {"name": c.name, "arguments": c.arguments}} for c in message.tool_calls]
                turn["tool_calls"] = [{"type": "function", **call} for call in calls]
            elif message.tool_calls:
                parts = (message.content, form.write(*message.tool_calls))
                turn["content"] = "\n".join(part for part in parts if part)
            if message.role == "tool" and not family.tool_role:
                turn = {"role": "user", "content": form.wrap_response(message.content), "tool": True}
                if turns and turns[-1].get("tool"):
                    turns[-1]["content"] += f"\n{turn['content']}"
                    continue
            turns.append(turn)
        if tools and not family.tools:
            turns = turns if turns[0]["role"] == "system" else [{"role": "system", "content": ""}, *turns]
            turns[0]["content"] = f"{turns[0]['content']}\n\n{form.describe(tools)}".lstrip("\n")
        functions = [function_form(tool) for tool in tools] if tools and family.tools else None
        template = self.template(name, **variables)
        return template.render(turns, tools=functions, now=self.now, generation_prompt=generation_prompt)

    def lease(self, name: str, *replies: Generation | Exception, max_context: int = 100_000) -> ScriptedLease:
        source = self.template(name).source
        info = EngineInfo(dialect="scripted", model="m", max_context=max_context, chat_template=source)
        return ScriptedLease(ScriptedBackend(self.tokenizer, info), list(replies))

    def chat(self, lease: ScriptedLease, sampling: SamplingParams | None = None, **hooks: object) -> ChatSession:
        setup = ChatSetup(
            lease=lease, renderers=self.renderers, ledger=Ledger(), sampling=sampling or SamplingParams(), **hooks
        )
        return ChatSession(setup)

    def generation(self, ids: list[int], finish: str = "stop", **more: object) -> Generation:
        logprobs = [-0.5 - i / 100 for i in range(len(ids))]
        return Generation(token_ids=ids, logprobs=logprobs, finish=finish, **more)

    async def said(self, text: str, *ending: str, finish: str = "stop") -> Generation:
        """A reply of this text, closed by these control tokens."""
        ids = await self.tokenizer.encode(text, special=True)
        return self.generation([*ids, *(self.added[token] for token in ending)], finish)

    def controls(self, ids: Sequence[int]) -> list[int]:
        known = set(self.added.values())
        return [token for token in ids if token in known]


@pytest.fixture(scope="session")
def kit() -> Kit:
    return Kit()


@pytest.fixture
def trajectory(kit):
    """Two conversations, a reply of two versions, a compaction, a branch, and a branch in which nothing happened."""
    ledger = Ledger()
    source = Source(model="m", tokenizer="t#1", template="t#2")
    main = ledger.open([1, 2, 3], text="prompt", source=source)

    def reply(stream, ids, version="1", **more):
        stream.append_sampled(
            kit.generation(ids, **more), after=stream.ids, backend="http://e", policy_version=version, text=f"{ids}"
        )

    reply(main, [4, 5], weight_spans=[VersionSpan("", 1), VersionSpan("2", 1)], cached_tokens=3)
    main.append_rendered([6], role="tool", text="42", ms=1.5)
    twin = ledger.branch(main, 5)
    ledger.branch(main, 3)
    twin.append_rendered([8], role="user", text="again")
    reply(twin, [9])
    reply(main, [7, 4], "2")
    after = ledger.open([1, 9], text="summary", source=source, origin="compaction", parent=main)
    reply(after, [5])
    ledger.note("compacted")
    return ledger.trajectory()
