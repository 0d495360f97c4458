"""The session itself: budgets, stops, seeds, order of calls, and what must never be mended in silence."""

import asyncio
import math

import msgspec
import pytest

from prorl.api import ContextOverflow, Message, ModelFault, TaskFault, ToolSchema
from prorl.llm.chat.session import ChatSession
from prorl.llm.dialects.chat_shapes import Call, Function, SaidMessage
from prorl.llm.rendering.cache import RendererCache
from prorl.llm.rendering.renderer import Renderer
from prorl.llm.tokenizers.local import LocalTokenizer, load_tokenizer
from prorl.testing.bytebpe import build_tokenizer
from prorl.wire import SamplingParams, Trajectory
from prorl.wire.trajectory import ToolCall

USER = Message(role="user", content="Hi")
TOOL = Message(role="tool", content="42", name="run")


async def test_a_whole_conversation(kit):
    call = '<tool_call>{"name": "run", "arguments": {"x": 1}}</tool_call>'
    lease = kit.lease("qwen3", await kit.said(f"Let me. {call}", "<|im_end|>"), await kit.said("42", "<|im_end|>"))
    spent, events = [], []
    chat = kit.chat(lease, spend=lambda **s: spent.append(s), emit=lambda kind, **data: events.append((kind, data)))
    await chat.open([USER], [ToolSchema(name="run", description="", parameters={})])
    reply = await chat.reply()
    assert (reply.text, reply.answer) == (f"Let me. {call}", "Let me.")
    assert (reply.tool_calls[0].name, reply.finish) == ("run", "stop")
    await chat.observe([TOOL], ms=12.0)
    assert (await chat.reply()).text == "42"
    chat.note("well done")
    trajectory = chat.trajectory()
    assert [(turn.role, turn.ms) for turn in trajectory.turns] == [
        ("prompt", 0.0),
        ("assistant", 2000.0),
        ("tool", 12.0),
        ("assistant", 2000.0),
    ]
    assert trajectory.turns[1].tool_calls == reply.tool_calls
    assert {turn.policy_version for turn in trajectory.turns} == {None, "v7"}
    assert (trajectory.model, trajectory.notes, trajectory.logprob_kind) == ("m", ["well done"], "processed")
    assert trajectory.tokenizer == f"bytebpe#{kit.tokenizer.digest}"
    assert spent == [{"model_s": 2.0}] * 2
    assert [kind for kind, _ in events] == ["chat.open", "chat.reply", "chat.observe", "chat.reply"]
    assert events[1][1]["tools"] == ["run"]


async def test_budget_stops_and_seed(kit):
    done = await kit.said("ok", "<|im_end|>")
    lease = kit.lease("chatml", done, done, max_context=100)
    lease.backend.info.eos_token_ids = (kit.added["<|endoftext|>"], kit.added["<|im_end|>"])
    chat = kit.chat(lease, SamplingParams(max_tokens=1000, seed=5, stop_token_ids=(7,)))
    await chat.open([USER])
    await chat.reply()
    await chat.observe([USER])
    await chat.reply(max_tokens=3)
    (prompt, first), (_, second) = lease.asked
    assert first.max_tokens == 100 - len(prompt)
    assert second.max_tokens == 3
    assert (first.seed, second.seed) == (5, 6)
    assert first.stop_token_ids == (7, kit.added["<|endoftext|>"], kit.added["<|im_end|>"])


async def test_overflow_is_foreseen(kit):
    lease = kit.lease("chatml", await kit.said("ok", "<|im_end|>"), max_context=60)
    chat = kit.chat(lease)
    await chat.open([USER])
    await chat.reply()
    with pytest.raises(ContextOverflow, match="takes 60") as caught:
        await chat.observe([Message(role="tool", content="x" * 60)])
    assert caught.value.needed is not None
    assert caught.value.needed > 60
    assert chat.trajectory().turns[-1].role == "assistant", "what does not fit is not appended"
    with pytest.raises(ContextOverflow, match="which needs 40"):
        await chat.observe([Message(role="tool", content="x")], keep_free=40)
    await chat.observe([Message(role="tool", content="x")])
    assert len(lease.asked) == 1, "the engine was not asked"


async def test_a_fork_goes_on_beside_its_parent(kit):
    lease = kit.lease("chatml", *[await kit.said(text, "<|im_end|>") for text in ("one", "two", "three")])
    chat = kit.chat(lease)
    await chat.open([USER])
    await chat.reply()
    twin, early = chat.fork(), chat.fork(turns=1)
    await chat.observe([USER])
    await chat.reply()
    with pytest.raises(TaskFault, match="ended its turn"):
        await twin.reply()
    assert (await early.reply()).text == "three"
    main, after, before = chat.trajectory().segments
    prompt = chat.trajectory().turns[0].end
    assert (before.shared, before.parent, before.origin) == (prompt, 0, "branch")
    assert before.tokens[:prompt] == main.tokens[:prompt] == lease.asked[2][0]
    assert after.tokens == main.tokens[: after.shared]
    assert not any(after.loss_mask), "what is shared is trained on in its parent"
    assert [m.role for m in early.messages] == ["user", "assistant"]
    with pytest.raises(TaskFault, match="2 turns"):
        twin.fork(turns=3)


async def test_two_samples_of_one_prompt_are_two_draws(kit):
    lease = kit.lease("chatml", *[await kit.said(text, "<|im_end|>") for text in ("one", "two", "three")])
    chat = kit.chat(lease, SamplingParams(seed=5))
    await chat.open([USER])
    twins = [chat.fork(), chat.fork()]
    for each in (chat, *twins):
        await each.reply()
    assert lease.asked[0][0] == lease.asked[1][0] == lease.asked[2][0]
    assert len({sampling.seed for _, sampling in lease.asked}) == 3
    assert lease.asked[0][1].seed == 5


async def test_a_restart_begins_a_segment_and_keeps_the_old_one(kit):
    lease = kit.lease("chatml", await kit.said("one", "<|im_end|>"), await kit.said("two", "<|im_end|>"))
    chat = kit.chat(lease)
    await chat.open([USER])
    await chat.reply()
    await chat.restart([Message(role="user", content="in short")], origin="compaction", note="the context was full")
    assert (await chat.reply()).text == "two"
    old, new = chat.trajectory().segments
    assert (new.origin, new.parent, new.shared) == ("compaction", 0, 0)
    assert 1 in old.loss_mask
    assert 1 in new.loss_mask
    assert lease.asked[1][0] == new.tokens[: len(lease.asked[1][0])]
    assert chat.trajectory().notes == ["segment 1 (compaction, after 0): the context was full"]


async def test_a_restart_that_does_not_fit_changes_nothing(kit):
    lease = kit.lease(
        "chatml", await kit.said("one", "<|im_end|>"), await kit.said("two", "<|im_end|>"), max_context=80
    )
    chat = kit.chat(lease)
    await chat.open([USER])
    await chat.reply()
    before = chat.messages
    for words, keep_free in (("x" * 80, 1), ("x", 79)):
        with pytest.raises(ContextOverflow, match=f"does not leave {keep_free}") as caught:
            await chat.restart([Message(role="user", content=words)], origin="compaction", keep_free=keep_free)
        assert caught.value.needed is not None
        assert caught.value.needed > len(words)
    assert len(chat.trajectory().segments) == 1
    assert chat.messages == before
    await chat.observe([USER])
    assert (await chat.reply()).text == "two"


async def test_a_prompt_that_does_not_fit(kit):
    chat = kit.chat(kit.lease("chatml", await kit.said("ok", "<|im_end|>"), max_context=40))
    for _ in range(2):
        with pytest.raises(ContextOverflow):
            await chat.open([Message(role="user", content="x" * 40)])
    assert chat.trajectory().segments == [], "what does not fit is not appended"
    await chat.open([Message(role="user", content="x")])
    assert (await chat.reply()).text == "ok"


async def test_a_conversation_of_many_messages(kit):
    """Rendered beside the event loop, which other jobs live on."""
    renderer = await kit.renderer("chatml")
    roles = ("user", "assistant")
    many = [Message(role=roles[i % 2], content=f"{i} <|im_end|>") for i in range(601)]
    whole = await renderer.prompt(many, now=kit.now)
    said = "".join(f"<|im_start|>{each.role}\n{each.content}<|im_end|>\n" for each in many)
    assert whole.text == f"{said}<|im_start|>assistant\n"
    assert await kit.tokenizer.decode(whole.ids) == whole.text
    assert whole.ids.count(kit.added["<|im_end|>"]) == len(many)


async def test_large_prompts_are_encoded_one_at_a_time(kit):
    """Any client may send prompts that no context takes, many at once; their ids would fill the memory."""
    running, most = set(), 0

    class Watched:
        digest, decode = kit.tokenizer.digest, kit.tokenizer.decode

        async def encode(self, text, *, special):
            nonlocal most
            if large := len(text) > 100_000:
                running.add(asyncio.current_task())
                most = max(most, len(running))
            try:
                await asyncio.sleep(0)
                return await kit.tokenizer.encode(text, special=special)
            finally:
                if large:
                    running.discard(asyncio.current_task())

    renderer = await Renderer.create(kit.template("chatml"), Watched())
    large = [Message(role="user", content="word " * 220_000)]
    both = await asyncio.gather(*(renderer.prompt(large, now=kit.now) for _ in range(3)))
    assert most == 1
    assert len({len(each.ids) for each in both}) == 1


async def test_what_cannot_travel_does_not_reach_the_trajectory(kit):
    """A result that cannot be encoded, or read again, would be a lost job."""
    chat = ChatSession(kit.chat(kit.lease("chatml", *[await kit.said("ok", "<|im_end|>")] * 2))._setup, agent="a\udc80")
    await chat.open([Message(role="user", content="\udcff")])
    await chat.reply()
    with pytest.raises(TaskFault, match="milliseconds, not nan"):
        await chat.observe([USER], ms=math.nan)
    await chat.observe([Message(role="tool", name="ls\udcff", content="file\udcff.txt")])
    await chat.reply()
    chat.note("odd: \udcff")
    trajectory = chat.trajectory()
    assert msgspec.json.decode(msgspec.json.encode(trajectory), type=Trajectory) == trajectory
    assert "\ufffd.txt" in trajectory.turns[2].text
    assert [message.content for message in chat.messages if message.role != "assistant"] == ["\ufffd", "file\ufffd.txt"]


async def test_order_of_calls(kit):
    chat = kit.chat(kit.lease("chatml", await kit.said("ok", "<|im_end|>")))
    for early in (chat.reply(), chat.observe([USER])):
        with pytest.raises(TaskFault, match="open"):
            await early
    await chat.open([USER])
    with pytest.raises(TaskFault, match="open already"):
        await chat.open([USER])
    with pytest.raises(TaskFault, match="after a reply"):
        await chat.observe([USER])
    await chat.reply()
    with pytest.raises(TaskFault, match="observe"):
        await chat.reply()
    with pytest.raises(TaskFault, match="at least one"):
        await chat.observe([])
    with pytest.raises(TaskFault):
        await chat.observe([Message(role="assistant", content="I said so")])
    await chat.observe([USER])


async def test_a_reply_that_was_cut_may_go_on(kit):
    lease = kit.lease("chatml", await kit.said("for", finish="abort"), await kit.said("ty", "<|im_end|>"))
    chat = kit.chat(lease)
    await chat.open([USER])
    await chat.reply()
    await chat.reply()
    prompt, asked = lease.asked[0][0], lease.asked[1][0]
    assert asked == prompt + await kit.tokenizer.encode("for", special=True)
    await chat.observe([USER])
    assert "forty<|im_end|>" in await kit.tokenizer.decode(chat.trajectory().segments[0].tokens)


async def test_a_failed_call_leaves_the_stream_as_it_was(kit):
    lease = kit.lease("chatml", ModelFault("lost", code="unreachable"), await kit.said("ok", "<|im_end|>"))
    chat = kit.chat(lease)
    await chat.open([USER])
    before = chat.trajectory()
    with pytest.raises(ModelFault):
        await chat.reply()
    assert chat.trajectory() == before
    assert (await chat.reply()).text == "ok"
    assert lease.asked[0][0] == lease.asked[1][0]


async def test_two_calls_at_once_are_refused(kit):
    lease = kit.lease("chatml", await kit.said("ok", "<|im_end|>"))
    started = asyncio.Event()
    generate = lease.generate

    async def slow(ids, sampling, **more):
        started.set()
        await asyncio.sleep(0.05)
        return await generate(ids, sampling, **more)

    lease.generate = slow
    chat = kit.chat(lease)
    await chat.open([USER])
    first = asyncio.ensure_future(chat.reply())
    await started.wait()
    with pytest.raises(TaskFault):
        await chat.reply()
    assert (await first).text == "ok"


async def test_another_tokenizer_is_never_papered_over(kit):
    lease = kit.lease("chatml", await kit.said("ok", "<|im_end|>"))
    chat = kit.chat(lease)
    await chat.open([USER])
    await chat.reply()
    await chat.observe([USER])
    lease.backend.tokens = LocalTokenizer(build_tokenizer().to_str().encode(), source="other")
    with pytest.raises(ModelFault) as caught:
        await chat.reply()
    assert caught.value.code == "tokenizer_changed"


async def test_a_call_that_moved_to_another_tokenizer_is_not_appended(kit):
    lease = kit.lease("chatml", await kit.said("ok", "<|im_end|>"))
    other = msgspec.structs.replace(lease.backend.info)
    moved = type(lease.backend)(LocalTokenizer(build_tokenizer().to_str().encode(), source="other"), other, "http://b")
    generate = lease.generate

    async def elsewhere(ids, sampling, **more):
        lease.backend = moved
        return await generate(ids, sampling, **more)

    chat = kit.chat(lease)
    await chat.open([USER])
    before = chat.trajectory()
    lease.generate = elsewhere
    with pytest.raises(ModelFault) as caught:
        await chat.reply()
    assert caught.value.code == "tokenizer_changed"
    assert chat.trajectory() == before


async def test_renderers_are_shared(kit):
    cache = RendererCache()
    backend = kit.lease("qwen3").backend
    first, second = await asyncio.gather(cache.get(backend), cache.get(backend))
    assert first is second
    assert await cache.get(kit.lease("chatml").backend) is not first


async def test_a_backend_without_a_template(kit):
    lease = kit.lease("chatml")
    lease.backend.info.chat_template = None
    with pytest.raises(ModelFault, match="tokenizer folder") as caught:
        await kit.chat(lease).open([USER])
    assert caught.value.code == "template"


async def test_a_tokenizer_that_cannot_be_loaded(kit, tmp_path):
    lease = kit.lease("chatml")
    lease.backend.tokenizer = lambda: load_tokenizer(str(tmp_path))
    with pytest.raises(ModelFault, match="no readable") as caught:
        await kit.chat(lease).open([USER])
    assert caught.value.code == "tokenizer"


async def test_calls_that_an_engine_has_read_are_checked_like_our_own(kit):
    """What a model can write must not become a fault, which masks the sample."""
    deep: dict = {}
    for _ in range(500):
        deep = {"x": deep}
    for arguments in (deep, {"x": 10**30}, {"x": "\ud800"}):
        said = await kit.said("", "<|im_end|>")
        calls = [ToolCall(name="run", arguments=arguments), ToolCall(name="run", arguments={"x": 1})]
        chat = kit.chat(kit.lease("chatml", msgspec.structs.replace(said, text="", tool_calls=calls)))
        await chat.open([USER])
        bad, good = (await chat.reply()).tool_calls
        assert bad.error is not None
        assert good == calls[1]
        for codec in (msgspec.json, msgspec.msgpack):
            assert codec.decode(codec.encode(chat.trajectory()), type=Trajectory) == chat.trajectory()


def test_a_call_nested_without_end_in_an_engines_words():
    (call,) = SaidMessage(tool_calls=[Call(Function(name="f", arguments='{"x":' * 50_000))]).calls
    assert "no valid JSON" in (call.error or "")
