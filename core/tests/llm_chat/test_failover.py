"""A tokenizer over HTTP dies with its engine; the conversation does not."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from prorl.api import Message, ModelFault
from prorl.llm.chat.ledger import Ledger
from prorl.llm.chat.session import ChatSession
from prorl.llm.chat.setup import ChatSetup
from prorl.llm.plugin import prorl_llm_dialects
from prorl.llm.pool import BackendPool, PoolSettings
from prorl.llm.rendering.cache import RendererCache
from prorl.llm.tokenizers.failover import FailoverTokenizer
from prorl.llm.tokenizers.local import TokenizerShelf
from prorl.testing.bytebpe import write_tokenizer
from prorl.testing.scripted import ScriptedEngine
from prorl.wire import BackendSpec


class Source:
    digest = "d"

    def __init__(self, name: int, *, fault: str | None = None) -> None:
        self.name = name
        self.fault = fault

    async def encode(self, text: str, *, special: bool) -> list[int]:
        if self.fault is not None:
            raise ModelFault("no", code=self.fault)
        return [self.name]

    async def decode(self, ids: Sequence[int]) -> str:
        return str(self.name)


async def test_the_latest_is_asked_first_and_a_dead_one_is_left_out() -> None:
    old, new = Source(1), Source(2)
    shared = FailoverTokenizer(old)
    shared.offer(new)
    assert await shared.encode("x", special=False) == [2]
    new.fault = "unreachable"
    assert await shared.encode("x", special=False) == [1]
    assert shared.current is old
    old.fault = "unreachable"
    for _ in range(2):
        with pytest.raises(ModelFault) as raised:
            await shared.encode("x", special=False)
        assert raised.value.code == "unreachable"
    new.fault = None
    shared.offer(new)
    assert await shared.encode("x", special=False) == [2]


async def test_another_fault_is_not_tried_elsewhere() -> None:
    shared = FailoverTokenizer(Source(1))
    shared.offer(Source(2, fault="bad_response"))
    with pytest.raises(ModelFault) as raised:
        await shared.encode("x", special=False)
    assert raised.value.code == "bad_response"


async def test_a_conversation_goes_on_after_its_engine_was_cleared_and_stopped() -> None:
    pool = BackendPool({record.name: record for record in prorl_llm_dialects()}, PoolSettings(settle_s=0.01))
    renderers = RendererCache()
    with ScriptedEngine(lambda request: f"first {request.call}") as first:
        await pool.add(BackendSpec(url=first.url))
        lease = pool.lease("job", wait_s=10, hold=nullcontext)
        chat = ChatSession(ChatSetup(lease=lease, renderers=renderers, ledger=Ledger()))
        await chat.open([Message(role="user", content="hello")])
        assert (await chat.reply()).text == "first 0"
        before = chat.trajectory().segments[0].tokens
        await pool.clear()
    with ScriptedEngine(lambda request: f"second {request.call}") as second:
        await pool.add(BackendSpec(url=second.url))
        await chat.observe([Message(role="tool", name="look", content="a body that was never encoded before")])
        assert (await chat.reply()).text == "second 0"
        await pool.close()
    (segment,) = chat.trajectory().segments
    assert segment.tokens[: len(before)] == before
    assert [turn.policy_version for turn in chat.trajectory().turns if turn.role == "assistant"] == ["0", "1"]


async def test_an_engine_that_dies_while_a_tools_words_are_encoded() -> None:
    settings = PoolSettings(settle_s=0.01)
    pool = BackendPool({record.name: record for record in prorl_llm_dialects()}, settings)
    with ScriptedEngine(lambda _: "one") as first, ScriptedEngine(lambda _: "two") as second:
        await pool.add(BackendSpec(url=first.url))
        lease = pool.lease("job", wait_s=10, hold=nullcontext)
        chat = ChatSession(ChatSetup(lease=lease, renderers=RendererCache(), ledger=Ledger()))
        await chat.open([Message(role="user", content="hello")])
        await chat.reply()
        await pool.add(BackendSpec(url=second.url))
        first.stop()  # nobody has noticed yet
        await chat.observe([Message(role="tool", name="look", content="words")])
        assert (await chat.reply()).text == "two"
        await pool.close()


async def test_a_folder_is_loaded_once_and_again_when_it_changed(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    shelf = TokenizerShelf()
    loaded = await shelf.load(str(tmp_path))
    assert await shelf.load(str(tmp_path)) is loaded
    (tmp_path / "chat_template.jinja").write_text("another")
    changed = await shelf.load(str(tmp_path))
    assert (changed.chat_template, changed.digest) == ("another", loaded.digest)
