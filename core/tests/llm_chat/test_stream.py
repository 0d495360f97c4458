"""The matrix: what a chat's stream says is what the template would have rendered for that conversation."""

import pytest

from prorl.api import Message, ToolSchema

TEMPLATES = ["qwen3", "smollm2", "chatml", "headers"]
TOOLS = [ToolSchema(name="run", description="Runs <code>.", parameters={"type": "object"})]
OPENING = [Message(role="system", content="Be brief.\n"), Message(role="user", content=" What is 6*7?\n\n")]
ONE, TWO = Message(role="tool", content='{"a": [42]}\n', name="run"), Message(role="tool", content="é🙂 \t")
USER = Message(role="user", content="\nGo on.")
OBSERVED = {"tool": [ONE], "two tools": [ONE, TWO], "user": [USER], "tool and user": [ONE, USER]}
ENDINGS = ["stopped", "cut by length", "other stop token", "empty", "nothing"]


def reference(kit, name, renderer, conversation, tools, *, generation_prompt=True):
    """The template itself, given the real bodies; tools and tool results as users' text where it knows none."""
    knows_tools, knows_role = name == "qwen3", name in ("qwen3", "headers")
    turns = []
    for message in conversation:
        if message.role == "tool" and not knows_role:
            text = f"<tool_response>\n{message.content}\n</tool_response>"
            if turns and turns[-1].get("tool"):
                turns[-1]["content"] += "\n" + text
            else:
                turns.append({"role": "user", "content": text, "tool": True})
        else:
            turns.append({"role": message.role, "content": message.content})
    functions = [
        {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
        for t in tools
    ]
    if tools and not knows_tools:
        turns[0]["content"] += "\n\n" + renderer.tool_format.describe(tools)
    return renderer.template.render(
        turns, tools=functions if knows_tools else None, now=kit.now, generation_prompt=generation_prompt
    )


def ending(kit, name, how, text):
    """Text and token ids' ending of a reply, its finish, and what the template must be given for it."""
    end = "<|eot_id|>" if name == "headers" else "<|im_end|>"
    match how:
        case "stopped":
            return text, [end], "stop", text
        case "cut by length":
            return text, [], "length", text
        case "other stop token":
            return text, ["<|endoftext|>"], "stop", text + "<|endoftext|>"
        case "empty":
            return "", [end], "stop", ""
        case _:
            return "", [], "abort", ""


@pytest.mark.parametrize("tools", [[], TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("observed", OBSERVED)
@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("name", TEMPLATES)
async def test_stream_is_what_the_template_renders(kit, name, how, observed, tools):
    first, second = ending(kit, name, how, "It is 42."), ending(kit, name, how, "So: 42")
    lease = kit.lease(name, await kit.said(first[0], *first[1], finish=first[2]))
    lease.replies.append(await kit.said(second[0], *second[1], finish=second[2]))
    chat = kit.chat(lease, now=kit.now)
    await chat.open(OPENING, tools)
    conversation = list(OPENING)
    stream: list[int] = []
    for _, _, _, rendered in (first, second):
        await chat.reply()
        await chat.observe(OBSERVED[observed])
        conversation += [Message(role="assistant", content=rendered), *OBSERVED[observed]]
        segment = chat.trajectory().segments[0]
        assert segment.tokens[: len(stream)] == stream, "earlier ids changed"
        stream = segment.tokens
    renderer = chat._renderer
    assert await kit.tokenizer.decode(stream) == reference(kit, name, renderer, conversation, tools)
    assert len(chat.trajectory().segments) == 1
    sampled = [token for token, mask in zip(stream, segment.loss_mask, strict=True) if mask]
    assert sampled == [
        token
        for reply in (first, second)
        for token in (await kit.said(reply[0], *reply[1])).token_ids
    ]  # fmt: skip
    assert [(len(prompt), stream[: len(prompt)] == prompt) for prompt, _ in lease.asked] == [
        (turn.start, True) for turn in chat.trajectory().turns if turn.role == "assistant"
    ]


@pytest.mark.parametrize("tools", [[], TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("name", TEMPLATES)
async def test_ids_are_those_of_the_template_encoded_whole(kit, name, tools):
    """Scaffold and bodies are encoded together: the model meets the ids that it was trained on."""
    renderer = await kit.renderer(name)
    prompt = await renderer.prompt(OPENING, tools, now=kit.now)
    text = reference(kit, name, renderer, OPENING, tools)
    assert prompt.text == text
    assert prompt.ids == await kit.tokenizer.encode(text, special=True)


@pytest.mark.parametrize("name", TEMPLATES)
async def test_thinking_of_earlier_turns_stays(kit, name):
    """Stock Qwen3 would drop it as soon as a user speaks."""
    end = "<|eot_id|>" if name == "headers" else "<|im_end|>"
    reply = await kit.said("<think>\nSix sevens.\n</think>\n\n42", end)
    chat = kit.chat(kit.lease(name, reply))
    await chat.open(OPENING)
    said = await chat.reply()
    before = chat.trajectory().segments[0].tokens
    await chat.observe([USER])
    after = chat.trajectory().segments[0].tokens
    assert after[: len(before)] == before
    assert said.answer == "42"
    appended = await kit.tokenizer.decode(after[len(before) :])
    whole = reference(kit, name, chat._renderer, [*OPENING, Message(role="assistant", content="42"), USER], [])
    assert whole.endswith(appended)


async def test_no_token_spans_the_seam(kit):
    """A reply cut after a newline, then the template's newline: apart, though the vocabulary has their merge."""
    lease = kit.lease("chatml", await kit.said("a\n", finish="length"))
    chat = kit.chat(lease)
    await chat.open([USER])
    await chat.reply()
    start = len(chat.trajectory().segments[0].tokens)
    await chat.observe([USER])
    appended = chat.trajectory().segments[0].tokens[start:]
    assert appended[0] == kit.added["<|im_end|>"]
    assert await kit.tokenizer.decode(appended[1:2]) == "\n"


async def test_the_date_is_one_moment_for_a_whole_trajectory(kit):
    renderer = await kit.renderer("headers")
    first = await renderer.prompt([USER], now=kit.now)
    later = await renderer.prompt([USER], now=kit.now.replace(day=2))
    assert "01 Mar 2026" in first.text
    assert "02 Mar 2026" in later.text


async def test_a_prompt_that_opens_thinking(kit):
    parts = [await kit.said(text, finish="length") for text in ("Hmm,", " seven", " is</think>42", " it is")]
    chat = kit.chat(kit.lease("thinking", *parts))
    await chat.open([USER])
    assert [(await chat.reply()).answer for _ in parts] == ["", "", "42", "it is"]


async def test_switches_reach_the_template(kit):
    renderer = await kit.renderer("qwen3", enable_thinking=False)
    prompt = await renderer.prompt([USER], now=kit.now)
    assert prompt.text.endswith("<think>\n\n</think>\n\n")
    assert kit.controls(prompt.ids)[-2:] == [kit.added["<think>"], kit.added["</think>"]]
    assert not prompt.opens_thinking


async def test_an_empty_body_is_empty_for_the_template_too(kit):
    renderer = await kit.renderer("qwen3")
    messages = [Message(role="tool", content=""), Message(role="user", content="")]
    rendered = await renderer.between(messages, previous_ended_with=None, now=kit.now)
    assert "<tool_response>\n\n</tool_response>" in rendered.text
