"""``openai-chat`` against real servers: a vLLM that tells its ids, and a llama.cpp that returns text alone."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from prorl.api import ContextOverflow, Message, ToolSchema
from prorl.llm.chat.ledger import Ledger
from prorl.llm.chat.session import ChatSession
from prorl.llm.chat.setup import ChatSetup
from prorl.llm.rendering.cache import RendererCache
from prorl.testing.bytebpe import build_tokenizer
from prorl.wire import BackendSpec, SamplingParams

TOKENIZER = build_tokenizer()
LOOK = ToolSchema(name="look", description="Look.", parameters={"type": "object", "properties": {}})


@pytest.fixture
def begin(make_pool):
    """``await begin(url)``: a chat with a server that is spoken to in messages, and its ledger."""

    async def start(url: str, **sampling: object) -> tuple[ChatSession, Ledger]:
        pool = make_pool()
        status = await pool.add(BackendSpec(url=url, dialect="openai-chat"))
        assert status.dialect == "openai-chat"
        ledger = Ledger()
        lease = pool.lease("job", wait_s=0, hold=nullcontext)
        setup = ChatSetup(lease=lease, renderers=RendererCache(), ledger=ledger, sampling=SamplingParams(**sampling))
        return ChatSession(setup), ledger

    return start


@pytest.mark.timeout(900)
async def test_vllm_tells_its_ids_and_the_trajectory_is_token_exact(vllm, client, begin):
    chat, ledger = await begin(vllm.url, max_tokens=40, seed=3)
    await chat.open([Message(role="user", content="Where is the ball?")], [LOOK])
    for question in ("Sure?", "Really?", ""):
        await chat.reply()
        if question:
            await chat.observe([Message(role="user", content=question)])
    trajectory = ledger.trajectory()
    assert trajectory.trainable
    first = trajectory.segments[0].tokens[: trajectory.turns[0].end]
    text = TOKENIZER.decode(first, skip_special_tokens=False)
    assert '"name": "look"' in text  # without a parser for calls it shows the tools all the same
    assert text.endswith("<|im_start|>user\nWhere is the ball?<|im_end|>\n<|im_start|>assistant\n")
    replies = [turn for turn in trajectory.turns if turn.role == "assistant"]
    assert len(replies) == 3
    assert sum(sum(segment.loss_mask) for segment in trajectory.segments) == sum(t.end - t.start for t in replies)
    for turn in replies:
        segment = trajectory.segments[turn.segment]
        assert turn.end > turn.start
        body = {"model": "tiny", "prompt": segment.tokens, "max_tokens": 1, "prompt_logprobs": 0, "temperature": 1.0}
        scored = (await client.post(f"{vllm.url}/v1/completions", json=body)).json()["choices"][0]["prompt_logprobs"]
        for place in range(turn.start, turn.end):
            token = segment.tokens[place]
            assert segment.logprobs[place] == pytest.approx(scored[place][str(token)]["logprob"], abs=1e-4)
    # a random model's words are no text, so its past was rendered anew at least once, in a segment of its own
    assert {segment.origin for segment in trajectory.segments} <= {"open", "rewrite"}


@pytest.mark.timeout(900)
async def test_vllm_says_that_a_conversation_has_no_room(vllm, begin):
    chat, _ = await begin(vllm.url, max_tokens=40)
    await chat.open([Message(role="user", content="word " * 5000)])
    with pytest.raises(ContextOverflow, match="has no room for this conversation"):
        await chat.reply()
    near, _ = await begin(vllm.url, max_tokens=4000, temperature=0.0)
    await near.open([Message(role="user", content="word " * 400)])
    reply = await near.reply()  # less than it asked for, since the prompt takes some of the context
    assert (reply.finish, near.room) == ("length", 0)


async def test_llamacpp_returns_text_which_is_not_trainable(llama, make_pool):
    pool = make_pool()
    await pool.add(BackendSpec(url=llama.url, dialect="openai-chat", max_context=512))
    ledger = Ledger()
    setup = ChatSetup(
        lease=pool.lease("job", wait_s=0, hold=nullcontext),
        renderers=RendererCache(),
        ledger=ledger,
        sampling=SamplingParams(max_tokens=30, temperature=0.0),
    )
    chat = ChatSession(setup)
    await chat.open([Message(role="user", content="Say only the word yes.")])
    first = await chat.reply()
    assert "yes" in first.answer.lower()
    await chat.observe([Message(role="user", content="And now the word no.")])
    assert (await chat.reply()).answer
    trajectory = ledger.trajectory()
    assert not trajectory.trainable
    assert trajectory.segments[0].tokens == []
    assert [turn.text != "" for turn in trajectory.turns] == [True] * 4
    await chat.observe([Message(role="user", content="word " * 2000)])
    with pytest.raises(ContextOverflow):
        await chat.reply()
