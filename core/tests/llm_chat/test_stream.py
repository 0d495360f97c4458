"""Streams in particular: thinking, seams, switches, empty bodies. The whole matrix is in ``test_matrix.py``."""

import pytest

from prorl.api import Message

TEMPLATES = ["qwen2.5", "qwen3", "qwen3-2507", "qwen3-coder", "llama3.1", "smollm2", "chatml", "headers"]
OPENING = [Message(role="system", content="Be brief.\n"), Message(role="user", content=" What is 6*7?\n\n")]
USER = Message(role="user", content="\nGo on.")


@pytest.mark.parametrize("name", TEMPLATES)
async def test_thinking_of_earlier_turns_stays(kit, name):
    """Stock Qwen3 would drop it as soon as a user speaks."""
    end = kit.families[name].end
    reply = await kit.said("<think>\nSix sevens.\n</think>\n\n42", end)
    chat = kit.chat(kit.lease(name, reply), now=kit.now)
    await chat.open(OPENING)
    said = await chat.reply()
    before = chat.trajectory().segments[0].tokens
    await chat.observe([USER])
    after = chat.trajectory().segments[0].tokens
    assert after[: len(before)] == before
    assert said.answer == "42"
    appended = await kit.tokenizer.decode(after[len(before) :])
    whole = kit.reference(name, [*OPENING, Message(role="assistant", content="42"), USER])
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
