"""The matrix: after any reply, however it ended, and any observation, a chat's stream holds what was there before, what
was sampled, and what the family's template would have put there."""

from itertools import product

import pytest

from prorl.api import Message, TaskFault, ToolSchema
from prorl.llm.rendering.renderer import Renderer

SCHEMA = {"type": "object", "properties": {"code": {"type": "string", "description": " What to run. "}}}
TOOLS = [ToolSchema(name="run", description="Runs <code>.", parameters=SCHEMA)]
OPENING = [Message(role="system", content="Be brief.\n"), Message(role="user", content=" What is 6*7?\n\n")]
ONE, TWO = Message(role="tool", content='{"a": [42]}\n', name="run"), Message(role="tool", content="é🙂 \t")
USER = Message(role="user", content="\nGo on.")
SYSTEM = Message(role="system", content="From now on: French. ")
OBSERVED = {
    "tool": [ONE],
    "two tools": [ONE, TWO],
    "user": [USER],
    "tool then user": [ONE, USER],
    "system change": [SYSTEM],
    "system change then user": [SYSTEM, USER],
}
# What a reply says, what ends it beside the family's own token (None: that one), and its finish.
ENDINGS = {
    "stopped": ("It is 42.", None, "stop"),
    "stopped after thinking": ("<think>\nSix sevens.\n</think>\n\n42", None, "stop"),
    "cut by length": ("It is 4", (), "length"),
    "cut after a newline": ("It is\n", (), "length"),
    "cut inside thinking": ("<think>\nSix sev", (), "length"),
    "cut inside a call": ('<tool_call>\n{"name": "ru', (), "length"),
    "another stop token": ("It is 42.", ("<|endoftext|>",), "stop"),
    "empty": ("", None, "stop"),
    "nothing": ("", (), "abort"),
}
FAMILIES = [
    "qwen2.5", "qwen3", "qwen3-2507", "qwen3-2507-thinking", "qwen3-coder", "llama3.1", "smollm2", "chatml", "headers",
]  # fmt: skip


def after_reply(kit, name, observed):
    """What the template puts after a reply's end-of-turn token, real bodies and all."""
    word = "Zyxw"
    text = kit.reference(name, [OPENING[1], Message(role="assistant", content=word), *observed])
    return text[text.rindex(word) + len(word) :].removeprefix(kit.families[name].end)


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("name", FAMILIES)
async def test_the_stream_only_grows_by_what_the_template_has(kit, name, how):
    for observed, tools in product(OBSERVED, ([], TOOLS)):
        await one_of_the_matrix(kit, name, how, observed, tools)


async def one_of_the_matrix(kit, name, how, observed, tools):
    family, (text, ending, finish) = kit.families[name], ENDINGS[how]
    if family.opens:  # the prompt has the opening tag
        text = text.removeprefix("<think>\n")
    ending = (family.end,) if ending is None else ending
    lease = kit.lease(name, *[await kit.said(text, *ending, finish=finish) for _ in range(2)])
    chat = kit.chat(lease, now=kit.now)
    await chat.open(OPENING, tools)
    expected = kit.reference(name, OPENING, tools)
    stream: list[int] = []
    for _ in range(2):
        await chat.reply()
        await chat.observe(OBSERVED[observed])
        closed = ending == (family.end,)
        expected += text + "".join(ending) + ("" if closed else family.end) + after_reply(kit, name, OBSERVED[observed])
        (segment,) = chat.trajectory().segments
        assert segment.tokens[: len(stream)] == stream, "earlier ids changed"
        stream = segment.tokens
    assert await kit.tokenizer.decode(stream) == expected, (observed, len(tools))
    sampled = [token for token, mask in zip(stream, segment.loss_mask, strict=True) if mask]
    assert sampled == 2 * (await kit.said(text, *ending)).token_ids


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "qwen3-2507-thinking"])
async def test_a_plain_conversation_is_the_template_s_from_end_to_end(kit, name):
    """Where nothing is rewritten, stream and template agree on the whole, to the id."""
    for observed, tools in product(OBSERVED, ([], TOOLS)):
        await a_plain_conversation(kit, name, observed, tools)


async def a_plain_conversation(kit, name, observed, tools):
    end, conversation = kit.families[name].end, list(OPENING)
    chat = kit.chat(kit.lease(name, await kit.said("It is 42.", end), await kit.said("So: 42", end)), now=kit.now)
    await chat.open(OPENING, tools)
    for text in ("It is 42.", "So: 42"):
        await chat.reply()
        await chat.observe(OBSERVED[observed])
        conversation += [Message(role="assistant", content=text), *OBSERVED[observed]]
    (segment,) = chat.trajectory().segments
    whole = kit.reference(name, conversation, tools)
    assert await kit.tokenizer.decode(segment.tokens) == whole
    assert segment.tokens == await kit.tokenizer.encode(whole, special=True)


@pytest.mark.parametrize("tools", [[], TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("name", FAMILIES)
async def test_ids_are_those_of_the_template_encoded_whole(kit, name, tools):
    """Scaffold and bodies are encoded together: the model meets the ids that it was trained on."""
    renderer = await kit.renderer(name)
    prompt = await renderer.prompt(OPENING, tools, now=kit.now)
    text = kit.reference(name, OPENING, tools)
    assert prompt.text == text
    assert prompt.ids == await kit.tokenizer.encode(text, special=True)
    assert prompt.opens_thinking is kit.families[name].opens


@pytest.mark.parametrize("name", FAMILIES)
async def test_what_a_template_can_do_is_found_out(kit, name):
    family, renderer = kit.families[name], await kit.renderer(name)
    manners = renderer._manners
    assert renderer.tool_format.name == family.format
    assert (manners.tools, manners.tool_role, manners.calls) == (family.tools, family.tool_role, family.tools)
    assert renderer.end_of_turn == kit.added[family.end]


async def test_a_call_of_llama_may_end_with_a_token_of_its_own(kit):
    """``<|eom_id|>``: the model waits for a result. It ends the turn, so nothing is put after it."""
    call = await kit.said('{"name": "run", "parameters": {"code": "6*7"}}', "<|eom_id|>")
    lease = kit.lease("llama3.1", call, await kit.said("42", "<|eot_id|>"))
    chat = kit.chat(lease)
    await chat.open(OPENING, TOOLS)
    reply = await chat.reply()
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("run", {"code": "6*7"})]
    await chat.observe([ONE])
    _, sampling = lease.asked[0]
    assert {kit.added["<|eot_id|>"], kit.added["<|eom_id|>"]} <= set(sampling.stop_token_ids)
    text = await kit.tokenizer.decode(chat.trajectory().segments[0].tokens)
    assert "}}<|eom_id|><|start_header_id|>ipython<|end_header_id|>" in text


async def test_templates_that_refuse_a_system_change(kit):
    chat = kit.chat(kit.lease("thinking", await kit.said("a</think>b", "<|im_end|>")))
    await chat.open([USER])
    await chat.reply()
    before = chat.trajectory().segments[0].tokens
    with pytest.raises(TaskFault, match="refuses messages of system: only user and assistant may speak"):
        await chat.observe([SYSTEM])
    assert chat.trajectory().segments[0].tokens == before


async def test_the_date_is_one_moment_for_a_whole_trajectory(kit):
    renderer: Renderer = await kit.renderer("headers")
    first = await renderer.prompt([USER], now=kit.now)
    later = await renderer.prompt([USER], now=kit.now.replace(day=2))
    assert "01 Mar 2026" in first.text
    assert "02 Mar 2026" in later.text
