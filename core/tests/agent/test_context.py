"""A context that fills up: foreseen, then an end with a name, a shorter observation, or a new segment."""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prorl.agent import AgentSettings, keep_recent
from prorl.agent.context import LEFT_OUT, length_of, shorten_all
from prorl.agent.loop import AgentLoop
from prorl.agent.output import blank_output
from prorl.api import ContextOverflow, Message, Observation, TaskFault, ToolSchema
from prorl.wire.trajectory import ToolCall

SYSTEM, USER = Message(role="system", content="s" * 10), Message(role="user", content="u" * 10)


def said(text, *calls):
    return Message(role="assistant", content=text, tool_calls=calls)


def result(text):
    return Message(role="tool", name="t", content=text)


class Long:
    """Answers with as many characters as it is asked for."""

    name, aliases, needs_sandbox = "long", (), False

    def schema(self):
        return ToolSchema(name="long", description="", parameters={})

    async def call(self, arguments, context):
        return Observation(text="x" * arguments["n"])


def long(play, *steps, **options):
    options = {"tools": ("long",), "system_prompt": "", "min_observation_tokens": 100, "min_reply_tokens": 50} | options
    context, handler = options.pop("room"), options.pop("handler", None)

    return play(*steps, tools=[Long()], settings=AgentSettings(**options), context=context, handler=handler)


# --- the loop ---


async def test_an_observation_that_does_not_fit_is_cut_to_what_fits(play):
    rollout = long(play, play.says("", play.call("long", n=5_000)), play.says("4"), room=1_000)
    output = await rollout.run()
    assert (output["ended"], output["cut_observations"], output["turns"]) == ("answer", 1, 2)
    [[observed]] = rollout.chat.observed
    assert 400 < len(observed.content) < 1_000
    assert "characters cut" in observed.content


async def test_short_observations_stay_whole_beside_a_long_one(play):
    calls = (play.call("long", n=20), play.call("long", n=5_000), play.call("long", n=30))
    rollout = long(play, play.says("", *calls), play.says("4"), room=1_000)
    assert (await rollout.run())["ended"] == "answer"
    [observed] = rollout.chat.observed
    assert [len(message.content) for message in (observed[0], observed[2])] == [20, 30]


async def test_a_context_that_takes_too_little_of_an_observation_is_full(play):
    rollout = long(play, play.says("a" * 850, play.call("long", n=5_000)), room=1_000)
    output = await rollout.run()
    assert (output["ended"], output["turns"], output["tool_calls"], output["answer"]) == ("context", 1, 1, "a" * 850)
    assert rollout.chat.observed == []
    assert "the context is full" in rollout.chat.notes[0]
    assert (await rollout.eval())["metrics"]["ended"] == "context"


async def test_room_for_a_reply_is_kept(play):
    """Without the budget the observation would fit, and the reply to it would be cut."""
    rollout = long(
        play,
        play.says("a" * 700, play.call("long", n=250)),
        room=1_000,
        min_reply_tokens=100,
        min_observation_tokens=300,
    )
    assert (await rollout.run())["ended"] == "context"
    fits = long(play, play.says("a" * 700, play.call("long", n=250)), play.says("4"), room=1_000, min_reply_tokens=1)
    assert (await fits.run())["ended"] == "answer"


async def test_a_prompt_that_leaves_no_room_for_a_reply_is_the_tasks_fault(play):
    with pytest.raises(TaskFault, match="min_reply_tokens") as caught:
        await long(play, room=60).run()
    assert caught.value.code == "prompt_too_long"


async def test_a_reply_that_fills_the_context_ends_for_want_of_context(play):
    rollout = long(play, play.says("a" * 990, finish="length"), room=1_000)
    output = await rollout.run()
    assert (output["ended"], output["cut_replies"]) == ("context", 1)


async def test_a_model_can_be_told_that_its_reply_was_cut(play):
    rollout = long(play, play.says("a" * 90, finish="length"), play.says("4"), room=1_000, cut_reply="tell")
    output = await rollout.run()
    assert (output["ended"], output["cut_replies"], output["answer"]) == ("answer", 1, "4")
    [[told]] = rollout.chat.observed
    assert told.role == "user"
    assert "cut off after 90 tokens" in told.content


async def test_compaction_goes_on_in_a_new_segment(play):
    steps = [play.says("", play.call("long", n=300)) for _ in range(6)]
    rollout = long(play, *steps, play.says("4"), room=1_000, context="compact")
    output = await rollout.run()
    assert (output["ended"], output["turns"], output["answer"]) == ("answer", 7, "4")
    assert output["compactions"] == len(rollout.chat.restarts) >= 2
    assert output["cut_observations"] == 0
    for origin, messages in rollout.chat.restarts:
        assert origin == "compaction"
        assert messages[0].content.startswith("What is 2 + 2?")
        assert messages[0].content.count(LEFT_OUT) == 1
        assert [message.role for message in messages] == ["user", "assistant", "tool"]
        assert messages[2].content == "x" * 300, "the newest observation is there, and whole"
    kinds = [kind for kind, _ in rollout.services.events]
    assert kinds.count("chat.compacted") == output["compactions"]


async def test_after_the_last_compaction_the_context_is_full(play):
    steps = [play.says("a" * 200, play.call("long", n=300)) for _ in range(9)]
    rollout = long(play, *steps, room=1_000, context="compact", max_compactions=1, min_observation_tokens=900)
    output = await rollout.run()
    assert (output["ended"], output["compactions"]) == ("context", 1)


async def test_compaction_repeats_a_reply_that_the_context_cut(play):
    rollout = long(
        play,
        play.says("", play.call("long", n=300)),
        play.says("b" * 650, finish="length"),
        play.says("4"),
        room=1_000,
        context="compact",
    )
    output = await rollout.run()
    assert (output["ended"], output["compactions"], output["cut_replies"], output["answer"]) == ("answer", 1, 1, "4")
    [(_, messages)] = rollout.chat.restarts
    assert messages[-1].role == "tool"


async def test_compaction_after_a_long_opening_still_shows_the_newest_observation(play):
    class Wordy(play.Sums):
        def messages(self, job):
            return [Message(role="user", content="u" * 600)]

    steps = [play.says("", play.call("long", n=90)) for _ in range(5)]
    rollout = long(play, *steps, play.says("4"), room=1_000, context="compact", handler=Wordy())
    output = await rollout.run()
    assert (output["ended"], output["cut_observations"]) == ("answer", 0)
    assert output["compactions"] >= 1
    assert all(messages[-1].content == "x" * 90 for _, messages in rollout.chat.restarts)


async def test_an_authors_own_compaction(play):
    asked = []

    class Own(play.Sums):
        async def compact(self, job, messages, chars):
            asked.append((messages, chars))
            return [Message(role="user", content="in short: 2 + 2" + "!" * chars)]

    steps = [play.says("", play.call("long", n=300)) for _ in range(4)]
    rollout = long(play, *steps, play.says("4"), room=1_000, context="compact", handler=Own())
    output = await rollout.run()
    assert output["ended"] == "answer"
    messages, chars = asked[0]
    assert [message.role for message in messages] == ["user", *["assistant", "tool"] * 4]
    assert 300 < chars < 700
    assert rollout.chat.restarts[0][1][0].content.startswith("in short")


async def test_a_compaction_that_does_not_fit_is_asked_for_less(play):
    asked = []

    class Wordy(play.Sums):
        async def compact(self, job, messages, chars):
            asked.append(chars)
            return [Message(role="user", content="!" * (chars * 5))]

    steps = [play.says("", play.call("long", n=300)) for _ in range(4)]
    rollout = long(play, *steps, play.says("4"), room=1_000, context="compact", handler=Wordy())
    assert (await rollout.run())["compactions"] == 1
    assert len(asked) > 1
    assert asked == sorted(asked, reverse=True)


@pytest.mark.parametrize("outcome", [[], [said("mine")], None])
async def test_a_bad_compaction_is_the_tasks_fault(play, outcome):
    class Bad(play.Sums):
        async def compact(self, job, messages, chars):
            return outcome

    steps = [play.says("", play.call("long", n=500)) for _ in range(4)]
    with pytest.raises(TaskFault, match="cannot be compacted" if outcome is None else "the last of which"):
        await long(play, *steps, room=1_000, context="compact", handler=Bad()).run()


async def test_a_compaction_that_the_template_refuses_masks_nothing(play):
    steps = [play.says("", play.call("long", n=300)) for _ in range(4)]
    rollout = long(play, *steps, room=1_000, context="compact", min_observation_tokens=900)

    async def refuse(*args, **options):
        raise TaskFault("the chat template refuses two calls", code="template")

    rollout.chat.restart = refuse
    output = await rollout.run()
    assert (output["ended"], output["compactions"]) == ("context", 0)
    assert rollout.chat.notes[0] == "no compaction: the chat template refuses two calls"


async def test_a_reminder_that_does_not_fit_ends(play):
    output = await long(play, play.says("a" * 900), room=1_000, reminder="r" * 100).run()
    assert (output["ended"], output["reminders"]) == ("context", 1)


async def test_the_context_may_be_full_at_any_turn(play):
    output = await play(play.says("so far", play.call("add", a=1, b=1)), ContextOverflow("full")).run()
    assert (output["ended"], output["answer"]) == ("context", "so far")


async def test_an_engine_with_less_room_that_takes_over_gets_a_shorter_conversation(play):
    steps = (play.says("", play.call("long", n=300)), ContextOverflow("full"), play.says("4"))
    output = await long(play, *steps, room=1_000, context="compact").run()
    assert (output["ended"], output["compactions"], output["answer"]) == ("answer", 1, "4")


# --- making less of it ---


def test_recent_exchanges_are_kept_whole():
    exchanges = [message for index in range(5) for message in (said(f"{index}" * 10), result(f"{index}" * 90))]
    kept = keep_recent([SYSTEM, USER, *exchanges], 240)
    assert kept[0] == SYSTEM
    assert kept[1].content == f"{USER.content}\n\n{LEFT_OUT}"
    assert kept[2:] == exchanges[-4:]


def test_nothing_is_left_out_where_all_fits():
    messages = [SYSTEM, USER, said("a"), result("b"), said("c"), USER]
    assert keep_recent(messages, 1_000) == messages
    assert keep_recent([SYSTEM, USER], 5) == [SYSTEM, USER]


def test_the_note_is_not_repeated():
    once = keep_recent([USER, said("a" * 50), result("b"), said("c"), result("d")], 40)
    again = keep_recent([*once, said("e" * 50), result("f"), said("g"), result("h")], 40)
    assert again[0].content.count(LEFT_OUT) == 1


def test_an_opening_without_a_user():
    [system, note, *_] = keep_recent([SYSTEM, said("a" * 50), result("b"), said("c"), result("d")], 20)
    assert (system, note.role, note.content) == (SYSTEM, "user", LEFT_OUT)


def test_the_last_exchange_is_cut_where_it_alone_is_too_long():
    calls = (ToolCall(name="t", arguments={"a": "y" * 50}),)
    kept = keep_recent([USER, said("", *calls), result("x" * 10_000), result("short")], 500)
    assert kept[1].tool_calls == calls
    assert kept[3].content == "short"
    assert sum(map(length_of, kept)) < 550


def test_shorten_all_is_fair():
    shown = shorten_all([result("a" * 1_000), result("b" * 100), result("c" * 1_000), said("d" * 50)], 900)
    lengths = [len(message.content) for message in shown]
    assert lengths[1] == 100
    assert lengths[3] == 50
    assert lengths[0] == lengths[2]
    assert sum(lengths) <= 900


# --- whatever comes ---


@given(
    texts=st.lists(st.tuples(st.integers(0, 200), st.lists(st.integers(0, 200), max_size=3)), max_size=8),
    opening=st.integers(0, 3),
    chars=st.integers(0, 2_000),
)
def test_what_is_kept_is_whole_exchanges(texts, opening, chars):
    head = [Message(role="user", content=f"{index}" * 20) for index in range(opening)]
    rest = [m for n, sizes in texts for m in (said("a" * n), *(result("r" * size) for size in sizes))]
    kept = keep_recent([*head, *rest], chars)
    shown = [message for message in kept if message.content != LEFT_OUT]
    tail = shown[len(head) :]
    assert [message.content.startswith(before.content) for message, before in zip(shown, head, strict=False)] == (
        [True] * len(head)
    )
    if texts:
        assert tail, "the last exchange stays"
        assert tail[0].role == "assistant"
        assert [message.role for message in tail] == [message.role for message in rest[-len(tail) :]]
        last = len(texts[-1][1]) + 1
        assert tail[:-last] == rest[len(rest) - len(tail) : len(rest) - last], "all others are whole"
    assert any(LEFT_OUT in message.content for message in kept) == (len(tail) < len(rest))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.tuples(st.integers(0, 400), st.lists(st.integers(0, 3_000), max_size=3)), max_size=30),
    room=st.integers(100, 1_500),
    options=st.fixed_dictionaries(
        {
            "context": st.sampled_from(["end", "compact"]),
            "max_compactions": st.integers(0, 5),
            "min_reply_tokens": st.integers(1, 80),
            "min_observation_tokens": st.integers(1, 300),
            "cut_reply": st.sampled_from(["end", "tell"]),
            "max_turns": st.integers(1, 20),
            "reminder": st.sampled_from(["", "Go on."]),
        }
    ),
)
def test_no_rollout_outgrows_its_context(play, steps, room, options):
    """Any sizes of replies and observations: it ends, for a reason that has a name, within its context."""

    class Sized(play.Chat):
        """Its replies take what room there is."""

        async def reply(self, *, max_tokens=None):
            assert self.room >= 1
            if self.script and (left := self.room - 1) < len(self.script[0].text):
                self.script[0] = play.says(self.script[0].text[:left], finish="length")
            step = await super().reply(max_tokens=max_tokens) if self.script else play.says("")
            assert self.tokens <= self.context
            return step

        async def observe(self, messages, *, ms=0.0, keep_free=1):
            await super().observe(messages, ms=ms, keep_free=keep_free)
            assert self.tokens + keep_free <= self.context

    script = [play.says("a" * text, *(play.call("long", n=n) for n in sizes)) for text, sizes in steps]
    services = play.Services(Sized(script, context=room), [Long()])
    output = blank_output()
    loop = AgentLoop(services, [Long()], AgentSettings(**options), None, output)
    try:
        asyncio.run(loop.run([USER]))
    except ContextOverflow:
        assert room - 11 < options["min_reply_tokens"]
        return
    assert output["ended"] in ("answer", "length", "context", "max_turns")
    assert output["turns"] <= options["max_turns"]
    assert output["compactions"] <= (options["max_compactions"] if options["context"] == "compact" else 0)
