"""Where a template would show earlier turns in another way: the stream stays, or the conversation begins anew."""

import pytest

from prorl.api import ContextOverflow, Message, ToolSchema
from prorl.wire.rendering import RenderingParams

OPENING = [Message(role="system", content="Be brief."), Message(role="user", content="6*7?")]
USER, TOOL = Message(role="user", content="And 7*8?"), Message(role="tool", content="42")
TOOLS = [ToolSchema(name="run", description="Runs code.", parameters={"type": "object"})]
CALL = '<tool_call>\n{"name": "run", "arguments": {"code": "6*7"}}\n</tool_call>'
SEGMENT = RenderingParams(history="segment")


async def started(kit, name, *texts, rendering=SEGMENT, tools=(), finish="stop", **more):
    end = [kit.families[name].end] if finish == "stop" else []
    replies = [await kit.said(text, *end, finish=finish) for text in texts]
    chat = kit.chat(kit.lease(name, *replies, **more), rendering=rendering, now=kit.now)
    await chat.open(OPENING, tools)
    return chat


async def text_of(kit, segment):
    return await kit.tokenizer.decode(segment.tokens)


async def test_keep_goes_on_and_says_so_once(kit):
    chat = await started(kit, "qwen3", *["<think>\nhm\n</think>\n\n42"] * 3, rendering=RenderingParams())
    for _ in range(3):
        await chat.reply()
        await chat.observe([USER])
    trajectory = chat.trajectory()
    assert [segment.origin for segment in trajectory.segments] == ["open"]
    assert (await text_of(kit, trajectory.segments[0])).count("hm") == 3
    assert [note for note in trajectory.notes if "would have rewritten" in note] == trajectory.notes
    assert len(trajectory.notes) == 1


@pytest.mark.parametrize(
    ("name", "text", "observed", "rewrites"),
    [
        ("qwen3", "<think>\nhm\n</think>\n\n42", USER, True),
        ("qwen3", f"<think>\nhm\n</think>\n\n{CALL}", TOOL, False),
        ("qwen3", "42", USER, False),
        ("qwen3", CALL, TOOL, False),
        ("qwen3-2507", "<think>\nhm\n</think>\n\n42", USER, True),
        ("qwen3-2507-thinking", "hm\n</think>\n\n42", USER, True),
        ("qwen3-2507-thinking", f"hm\n</think>\n\n{CALL}", TOOL, False),
        ("qwen3-coder", "<think>\nhm\n</think>\n\n42", USER, False),
        ("qwen2.5", "<think>\nhm\n</think>\n\n42", USER, False),
        ("llama3.1", "42", USER, False),
        ("smollm2", f"42 {CALL}", TOOL, False),
        ("chatml", "<think>\nhm\n</think>\n\n42", USER, False),
    ],
)
@pytest.mark.parametrize("history", ["keep", "segment"])
async def test_when_a_template_rewrites(kit, name, text, observed, rewrites, history):
    chat = await started(kit, name, text, rendering=RenderingParams(history=history), tools=TOOLS)
    await chat.reply()
    await chat.observe([observed])
    trajectory = chat.trajectory()
    assert bool(trajectory.notes) is rewrites
    assert len(trajectory.segments) == 1 + (rewrites and history == "segment")


async def test_a_segment_is_the_conversation_as_the_template_has_it(kit):
    first = f"<think>\nLet me run it.\n</think>\n\nI run it.\n{CALL}"
    chat = await started(kit, "qwen3", first, "<think>\nSo.\n</think>\n\n42", "56", tools=TOOLS)
    await chat.reply()
    await chat.observe([TOOL])
    await chat.reply()
    before = chat.trajectory().segments[0]
    await chat.observe([USER])
    await chat.reply()
    old, new = chat.trajectory().segments
    assert old == before, "the old segment changed"
    assert (new.origin, new.parent) == ("rewrite", 0)
    said = Message(role="assistant", content=f"<think>\nLet me run it.\n</think>\n\nI run it.\n{CALL}")
    conversation = [*OPENING, said, TOOL, Message(role="assistant", content="42"), USER]
    expected = kit.reference("qwen3", conversation, TOOLS)
    assert "Let me run it" not in expected
    assert await text_of(kit, new) == expected + "56<|im_end|>"
    assert new.loss_mask == [0] * (len(new.tokens) - 3) + [1] * 3
    assert chat.trajectory().notes == [
        "segment 1 (rewrite, after 0): history: the chat template rewrites earlier turns"
    ]


async def test_thinking_switched_off(kit):
    """Stock Qwen3 puts an empty block before a reply, and leaves it out of earlier turns."""
    off = RenderingParams(history="segment", thinking=False)
    chat = await started(kit, "qwen3", "42", "56", rendering=off)
    await chat.reply()
    await chat.observe([USER])
    first, second = [await text_of(kit, segment) for segment in chat.trajectory().segments]
    assert first.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n42<|im_end|>")
    assert "assistant\n42<|im_end|>" in second
    assert second.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


async def test_a_reply_that_was_cut_and_went_on_is_one_message(kit):
    chat = await started(kit, "qwen3", "<think>\nhm, se", "ven\n</think>\n\nIt is", " 42", finish="length")
    for _ in range(3):
        await chat.reply()
    await chat.observe([USER])
    _, renewed = chat.trajectory().segments
    conversation = [*OPENING, Message(role="assistant", content="It is 42"), USER]
    assert await text_of(kit, renewed) == kit.reference("qwen3", conversation)


async def test_a_rewrite_that_does_not_fit_changes_nothing(kit):
    chat = await started(kit, "qwen3", "<think>\nhm\n</think>\n\n42", max_context=130)
    await chat.reply()
    before = chat.trajectory()
    with pytest.raises(ContextOverflow):
        await chat.observe([Message(role="user", content="x" * 100)], keep_free=20)
    assert chat.trajectory() == before
    await chat.observe([USER], keep_free=1)
    assert len(chat.trajectory().segments) == 2


async def test_what_a_template_cannot_render_whole_stays_as_it_is(kit):
    """Llama 3.1's takes no two calls in one message; the stream does not care."""
    calls = '{"name": "run", "parameters": {"code": "1"}}; {"name": "run", "parameters": {"code": "2"}}'
    chat = await started(kit, "llama3.1", calls, "42", tools=TOOLS)
    assert len((await chat.reply()).tool_calls) == 2
    await chat.observe([TOOL, TOOL])
    assert len(chat.trajectory().segments) == 1


async def test_a_fork_of_a_rewritten_conversation(kit):
    chat = await started(kit, "qwen3", "<think>\nhm\n</think>\n\n42", "56", "57")
    await chat.reply()
    await chat.observe([USER])
    twin = chat.fork()
    await twin.reply()
    await chat.reply()
    assert [segment.origin for segment in chat.trajectory().segments] == ["open", "rewrite", "branch"]
    assert [message.content for message in twin.messages][-2:] == ["And 7*8?", "56"]
