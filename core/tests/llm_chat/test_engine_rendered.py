"""Conversations with engines that take messages: NeMo RL's, held to the ids that were sampled, and OpenAI's, whose ids
are recorded as the engine tells them, or not at all. Over real HTTP, through the pool."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest

from prorl.api import ContextOverflow, Message, ModelFault, ToolSchema
from prorl.llm.chat.ledger import Ledger
from prorl.llm.chat.session import ChatSession
from prorl.llm.chat.setup import ChatSetup
from prorl.llm.plugin import prorl_llm_dialects
from prorl.llm.pool import BackendPool, PoolSettings
from prorl.llm.rendering.cache import RendererCache
from prorl.testing.bytebpe import build_tokenizer, write_tokenizer
from prorl.testing.httpd import Response, error_response
from prorl.testing.scripted import ScriptedEngine, ScriptedReply, ScriptedRequest
from prorl.testing.scripted.chat import ChatSpeech, NemoRlSpeech
from prorl.wire import BackendSpec, SamplingParams, Trajectory
from prorl.wire.soundness import check_trajectory

TOKENIZER = build_tokenizer()
USER = [Message(role="system", content="Be brief."), Message(role="user", content="Where is <|im_end|> the ball?")]
PLAIN = [Message(role="system", content="Be brief."), Message(role="user", content="Where is the ball?")]
LOOK = ToolSchema(
    name="look",
    description="Look somewhere.",
    parameters={"type": "object", "properties": {"where": {"type": "string"}}, "required": ["where"]},
)
# Written in another way than a template would write the same call, so that rendering it anew cannot go unseen.
CALL = '<tool_call>\n{"name":"look",  "arguments":{"where":"under the bed"}}\n</tool_call>'


def words(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False).ids)


def decoded(ids: list[int]) -> str:
    return str(TOKENIZER.decode(ids, skip_special_tokens=False))


def says(*replies: str | ScriptedReply) -> Callable[[ScriptedRequest], str | ScriptedReply]:
    """These replies, in this order, whatever was asked."""
    left = list(replies)
    return lambda _: left.pop(0)


class Refusing(ChatSpeech):
    async def asked(self, engine: ScriptedEngine, path: str, body: dict[str, Any]) -> Response:
        return error_response(404, "as ordered")


class Talk:
    """A chat with an engine through a pool of its own."""

    def __init__(self, engine: ScriptedEngine, pool: BackendPool, sampling: SamplingParams) -> None:
        self.engine = engine
        self.pool = pool
        self.ledger = Ledger()
        self.setup = ChatSetup(
            lease=pool.lease("job", wait_s=0, hold=nullcontext),
            renderers=RendererCache(),
            ledger=self.ledger,
            sampling=sampling,
        )
        self.chat = ChatSession(self.setup)

    @property
    def trajectory(self) -> Trajectory:
        trajectory = self.ledger.trajectory()
        assert check_trajectory(trajectory) == []
        return trajectory


@pytest.fixture
async def talk(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    async with AsyncExitStack() as stack:

        async def start(speech: ChatSpeech, policy: Any, *, max_context: int = 2048, **sampling: Any) -> Talk:
            engine = await stack.enter_async_context(ScriptedEngine(policy, speech=speech, max_context=max_context))
            pool = BackendPool({record.name: record for record in prorl_llm_dialects()}, PoolSettings())
            stack.push_async_callback(pool.close)
            write_tokenizer(tmp_path)
            tokenizer = str(tmp_path) if isinstance(speech, NemoRlSpeech) else None
            await pool.add(BackendSpec(url=engine.url, tokenizer=tokenizer))
            return Talk(engine, pool, SamplingParams(**sampling))

        yield start


def check_sampled(trajectory: Trajectory, engine: ScriptedEngine) -> None:
    """Every sampled token was sampled once, after exactly the tokens that stand before it."""
    replies = [turn for turn in trajectory.turns if turn.role == "assistant"]
    assert len(replies) == len(engine.requests)
    for turn, request in zip(replies, engine.requests, strict=True):
        assert trajectory.input_ids(turn) == request.prompt_ids
        segment = trajectory.segments[turn.segment]
        assert segment.loss_mask[turn.start : turn.end] == [1] * (turn.end - turn.start)
    assert sum(sum(segment.loss_mask) for segment in trajectory.segments) == sum(t.end - t.start for t in replies)


@pytest.mark.parametrize("echoes", [True, False], ids=["recent", "of old"])
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "cut off"])
async def test_nemo_rl_samples_after_our_ids(talk, echoes, closed):
    odd = ScriptedReply(token_ids=[*words("<think>\nhm"), *words("\n\n"), *words("\n</think>\n\n"), *words(CALL)])
    first = ScriptedReply(token_ids=odd.token_ids, end=closed)
    one = await talk(NemoRlSpeech(echoes=echoes), says(first, "Under the bed.", "Yes."), max_tokens=300)
    chat = one.chat
    await chat.open(PLAIN, [LOOK])
    reply = await chat.reply()
    assert [call.name for call in reply.tool_calls] == ["look"]
    await chat.observe([Message(role="tool", name="look", content="A ball.\n")])
    assert (await chat.reply()).answer == "Under the bed."
    await chat.observe([Message(role="user", content="Sure?")])
    await chat.reply()
    trajectory = one.trajectory
    check_sampled(trajectory, one.engine)
    assert (len(trajectory.segments), trajectory.trainable) == (1, True)
    # what was sampled stands in the prompt of the last call as it was sampled, thinking and odd spelling included
    assert (
        odd.token_ids
        == one.engine.requests[-1].prompt_ids[len(one.engine.requests[0].prompt_ids) :][: len(odd.token_ids)]
    )
    prefixes = [body.get("required_prefix_token_ids") for body in one.engine.speech.bodies]
    assert prefixes[0] is None
    assert prefixes[1] == trajectory.segments[0].tokens[: trajectory.turns[1].end]


@pytest.mark.parametrize("echoes", [True, False], ids=["recent", "of old"])
async def test_nemo_rl_renders_untrusted_text_in_its_own_way_and_is_found_out(talk, echoes):
    """It makes a control token of one that stands in the user's text, which we never do."""
    one = await talk(NemoRlSpeech(echoes=echoes), says("In the garden."))
    await one.chat.open(USER)
    with pytest.raises(ModelFault, match="sampled after another prompt") as caught:
        await one.chat.reply()
    assert caught.value.code == "prompt_mismatch"
    assert sum(one.trajectory.segments[0].loss_mask) == 0


async def test_nemo_rl_takes_the_trainers_sampling_only(talk):
    one = await talk(NemoRlSpeech(temperature=0.8), says("a"), temperature=1.0)
    await one.chat.open(PLAIN)
    with pytest.raises(ModelFault, match=r"temperature 1 and top_p 1: they must be those of its policy") as caught:
        await one.chat.reply()
    assert caught.value.code == "rejected"
    assert one.pool.status().backends[0].healthy  # it is the job that is wrong
    right = await talk(NemoRlSpeech(temperature=0.8), says("a", "b"), temperature=0.8)
    await right.chat.open(PLAIN)
    await right.chat.reply()
    right.engine.speech._sampling = (-1.0, -1.0)  # now it fails of itself: this sampling it had taken
    await right.chat.observe([Message(role="user", content="and?")])
    with pytest.raises(ModelFault) as caught:
        await right.chat.reply()
    assert caught.value.code == "no_backend"  # it was tried elsewhere, and there is none
    cut = await talk(NemoRlSpeech(), says("a"), top_k=5)
    await cut.chat.open(PLAIN)
    with pytest.raises(ModelFault, match="takes no top_k"):
        await cut.chat.reply()


async def test_ids_that_an_openai_server_tells_are_recorded(talk):
    one = await talk(ChatSpeech(), says("In the garden.", "No, in the house.", "Yes."))
    chat = one.chat
    await chat.open(USER)
    assert one.trajectory.turns == []  # it is the engine that knows how the prompt is spelt
    first = await chat.reply()
    assert (first.answer, first.tokens) == ("In the garden.", len(words("In the garden.")) + 1)
    await chat.observe([Message(role="user", content="Sure?")], ms=3.0)
    await chat.reply()
    await chat.observe([Message(role="user", content="Really?")])
    await chat.reply()
    trajectory = one.trajectory
    check_sampled(trajectory, one.engine)
    assert (len(trajectory.segments), trajectory.trainable, trajectory.notes) == (1, True, [])
    assert [turn.role for turn in trajectory.turns] == ["prompt", "assistant", "user", "assistant", "user", "assistant"]
    assert [turn.ms for turn in trajectory.turns][2] == 3.0
    assert decoded(trajectory.segments[0].tokens[trajectory.turns[2].start : trajectory.turns[2].end]) == (
        "\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_a_past_that_the_engine_renders_anew_begins_a_segment(talk):
    """The call was written with spaces that the template does not write: the second prompt is no continuation."""
    one = await talk(ChatSpeech(), says(CALL, "Under the bed.", "Yes."))
    chat = one.chat
    await chat.open(PLAIN, [LOOK])
    assert [call.arguments for call in (await chat.reply()).tool_calls] == [{"where": "under the bed"}]
    await chat.observe([Message(role="tool", name="look", content="A ball.")])
    await chat.reply()
    await chat.observe([Message(role="user", content="Sure?")])
    await chat.reply()
    trajectory = one.trajectory
    check_sampled(trajectory, one.engine)
    assert [(segment.origin, segment.parent) for segment in trajectory.segments] == [("open", None), ("rewrite", 0)]
    assert trajectory.trainable
    assert any("as the engine rendered it" in note for note in trajectory.notes)
    assert '{"name": "look", "arguments": {"where": "under the bed"}}' in decoded(trajectory.segments[1].tokens)


async def test_a_branch_shares_what_is_known_and_goes_on_by_itself(talk):
    one = await talk(ChatSpeech(), says("one", "two", "three"))
    await one.chat.open(PLAIN)
    await one.chat.reply()
    twin = one.chat.fork()
    other = one.chat.fork(turns=1)  # before the first reply: nothing is known there yet
    for chat in (one.chat, twin):
        await chat.observe([Message(role="user", content="and?")])
        await chat.reply()
    trajectory = one.trajectory
    check_sampled(trajectory, one.engine)
    assert [(s.origin, s.parent, s.shared) for s in trajectory.segments] == [
        ("open", None, 0),
        ("branch", 0, trajectory.turns[1].end),
        ("branch", 0, 0),
    ]
    one.engine._policy = says("four")
    assert (await other.reply()).answer == "four"
    assert decoded(one.trajectory.segments[2].tokens).endswith(
        "Where is the ball?<|im_end|>\n<|im_start|>assistant\nfour<|im_end|>"
    )


@pytest.mark.parametrize("tells", ["nothing", "strict"])
async def test_text_alone_is_not_trainable_and_no_ids_are_made_up(talk, tells):
    one = await talk(ChatSpeech(tells=tells), says(CALL, "Under the bed."))
    chat = one.chat
    await chat.open(USER, [LOOK])
    reply = await chat.reply()
    assert [call.arguments for call in reply.tool_calls] == [{"where": "under the bed"}]
    await chat.observe([Message(role="tool", name="look", content="A ball.")])
    assert (await chat.reply()).answer == "Under the bed."
    trajectory = one.trajectory
    assert not trajectory.trainable
    assert trajectory.notes == [f"not trainable: {one.engine.url} returns text without token ids"]
    assert trajectory.segments[0].tokens == []
    assert [(turn.role, turn.start, turn.end) for turn in trajectory.turns] == [
        (role, 0, 0) for role in ("prompt", "assistant", "tool", "assistant")
    ]
    assert trajectory.turns[2].text == "[tool] A ball."
    bodies = one.engine.speech.bodies
    assert ["return_token_ids" in body for body in bodies] == (
        [True, False, False] if tells == "strict" else [True, True]
    )
    call, answer = bodies[-1]["messages"][-2:]
    assert call["tool_calls"][0]["id"] == answer["tool_call_id"] == "call_0"


async def test_what_a_strict_server_cannot_do_is_said(talk):
    one = await talk(ChatSpeech(tells="strict"), says("a"), top_k=5)
    await one.chat.open(PLAIN)
    with pytest.raises(ModelFault, match="takes none of top_k") as caught:
        await one.chat.reply()
    assert caught.value.code == "rejected"


async def test_a_reply_gets_the_room_that_is_left_and_a_prompt_without_room_is_an_overflow(talk):
    one = await talk(ChatSpeech(), says("word " * 100, "word " * 100), max_context=120, max_tokens=110)
    await one.chat.open(PLAIN)
    reply = await one.chat.reply()
    assert reply.finish == "length"
    assert one.chat.room == 0
    with pytest.raises(ContextOverflow):
        await one.chat.observe([Message(role="user", content="and?")])
    full = await talk(ChatSpeech(), says("a"), max_context=20)
    await full.chat.open([Message(role="user", content="word " * 100)])
    with pytest.raises(ContextOverflow, match="maximum context length") as caught:
        await full.chat.reply()
    assert not caught.value.masks
    assert full.trajectory.turns == []


@pytest.mark.parametrize("tells", ["vllm", "nothing"])
async def test_a_compacted_conversation_goes_on_in_a_segment_of_its_own(talk, tells):
    one = await talk(ChatSpeech(tells=tells), says("one", "two"))
    await one.chat.open(PLAIN)
    await one.chat.reply()
    await one.chat.observe([Message(role="user", content="and?")])  # never answered: what it is as tokens, nobody says
    await one.chat.restart([Message(role="user", content="In short: and?")], origin="compaction", note="too long")
    await one.chat.reply()
    trajectory = one.trajectory
    assert [(segment.origin, segment.parent) for segment in trajectory.segments] == [("open", None), ("compaction", 0)]
    assert [(turn.role, turn.segment) for turn in trajectory.turns] == [
        ("prompt", 0),
        ("assistant", 0),
        ("prompt", 1),
        ("assistant", 1),
    ]
    if tells == "vllm":
        check_sampled(trajectory, one.engine)


async def test_a_call_that_failed_leaves_nothing_behind_and_may_be_made_again(talk):
    one = await talk(ChatSpeech(), says("one", "two"))
    await one.chat.open(PLAIN)
    await one.chat.reply()
    await one.chat.observe([Message(role="user", content="and?")])
    before = one.trajectory
    speech, one.engine.speech = one.engine.speech, Refusing()
    with pytest.raises(ModelFault, match="as ordered"):
        await one.chat.reply()
    assert one.trajectory == before
    one.engine.speech = speech
    assert (await one.chat.reply()).answer == "two"
    check_sampled(one.trajectory, one.engine)
    assert len(one.trajectory.segments) == 1
