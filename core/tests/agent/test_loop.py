"""How a rollout ends, and what the model is told on the way."""

import pytest

from prorl.agent import AgentSettings
from prorl.api import ContextOverflow, ModelFault, Observation, SandboxFault, TaskFault, ToolSchema
from prorl.wire.trajectory import ToolCall


async def test_calls_then_an_answer(play):
    rollout = play(play.says("adding", play.call("add", a=2, b=2)), play.says("4"))
    output = await rollout.run()
    assert (output["answer"], output["ended"], output["turns"]) == ("4", "answer", 2)
    assert (output["tool_calls"], output["tool_errors"], output["bad_calls"]) == (1, 0, 0)
    [[observed]] = rollout.chat.observed
    assert (observed.role, observed.name, observed.content) == ("tool", "add", "4")
    assert [schema.name for schema in rollout.chat.tools] == ["add", "finish"]
    assert [kind for kind, _ in rollout.services.events] == ["tool.call"]
    assert rollout.services.model_s == 0  # the chat's own business
    assert rollout.services.tools_s > 0


async def test_all_results_of_a_turn_are_observed_together_in_order(play):
    rollout = play(play.says("", play.call("add", a=1, b=1), play.call("plus", a=2, b=2)), play.says("done"))
    await rollout.run()
    [messages] = rollout.chat.observed
    assert [(message.name, message.content) for message in messages] == [("add", "2"), ("add", "4")]


async def test_the_finish_tool_ends_with_its_answer(play):
    rollout = play(play.says("so", play.call("finish", message="4"), play.call("add", a=1, b=1)))
    output = await rollout.run()
    assert (output["answer"], output["reply"], output["ended"]) == ("4", "so", "finish")
    assert output["tool_calls"] == 1
    assert rollout.chat.observed == []


async def test_a_finish_without_an_answer_leaves_the_replys(play):
    output = await play(play.says("it is 4", play.call("finish"))).run()
    assert (output["answer"], output["ended"]) == ("it is 4", "finish")


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (ToolCall(name="rm"), "no tool named 'rm'. The tools are: add, finish."),
        (ToolCall(name="x" * 10_000), "no tool named"),
        (ToolCall(name="", error="Expecting ',' at column 9"), "Expecting ',' at column 9"),
        (ToolCall(name="add", error="arguments are not an object"), "Write it again"),
        (ToolCall(name="add", arguments={"a": "2"}), "must be integers"),
    ],
)
async def test_a_bad_call_is_an_observation_and_the_rollout_goes_on(play, bad, told):
    rollout = play(play.says("", bad), play.says("4"))
    output = await rollout.run()
    [[observed]] = rollout.chat.observed
    assert told in observed.content
    assert len(observed.content) < 400
    assert observed.name in ("add", "error")
    assert (output["ended"], output["tool_errors"]) == ("answer", 1)
    assert output["bad_calls"] == (bad.name != "add" or bad.error is not None)


async def test_calls_beyond_the_limit_of_a_turn_are_not_run(play):
    calls = [play.call("add", a=n, b=0) for n in range(4)]
    rollout = play(play.says("", *calls), play.says("4"), max_calls_per_turn=2)
    output = await rollout.run()
    [messages] = rollout.chat.observed
    assert [message.content for message in messages[:2]] == ["0", "1"]
    assert all("only the first 2" in message.content for message in messages[2:])
    assert output["bad_calls"] == 2


async def test_max_turns_runs_the_last_calls_but_shows_nobody(play):
    script = [play.says(str(n), play.call("add", a=n, b=n)) for n in range(5)]
    rollout = play(*script, max_turns=3)
    output = await rollout.run()
    assert (output["ended"], output["turns"], output["tool_calls"], output["answer"]) == ("max_turns", 3, 3, "2")
    assert len(rollout.chat.observed) == 2


async def test_finish_in_the_last_turn_is_a_finish(play):
    output = await play(play.says("", play.call("finish", message="4")), max_turns=1).run()
    assert output["ended"] == "finish"


async def test_a_reply_cut_by_length_ends(play):
    output = await play(play.says("cut", play.call("add", a=1, b=1), finish="length"), max_reply_tokens=7).run()
    assert (output["ended"], output["tool_calls"], output["answer"]) == ("length", 0, "cut")


async def test_the_reply_limit_reaches_the_chat(play):
    rollout = play(play.says("4"), max_reply_tokens=7)
    await rollout.run()
    assert rollout.chat.limits == [7]


async def test_a_full_context_ends_with_the_work_so_far(play):
    output = await play(play.says("so far", play.call("add", a=1, b=1)), ContextOverflow("full")).run()
    assert (output["ended"], output["turns"], output["answer"]) == ("context", 1, "so far")


async def test_a_prompt_that_does_not_fit_is_the_tasks_fault(play):
    with pytest.raises(TaskFault, match="does not fit") as caught:
        await play(opening=ContextOverflow("9000 > 512")).run()
    assert caught.value.code == "prompt_too_long"


async def test_one_reminder_then_the_answer(play):
    rollout = play(play.says("hm"), play.says("4"), reminder="Call a tool, or answer.")
    output = await rollout.run()
    [[reminder]] = rollout.chat.observed
    assert (reminder.role, reminder.content) == ("user", "Call a tool, or answer.")
    assert (output["ended"], output["answer"], output["reminders"]) == ("answer", "4", 1)


async def test_no_reminder_after_the_last_turn(play):
    output = await play(play.says("4"), reminder="Go on.", max_turns=1).run()
    assert (output["ended"], output["reminders"]) == ("answer", 0)


async def test_a_lost_sandbox_leaves_the_loop(play):
    class Lost:
        async def act(self, action, arguments, *, timeout):
            raise SandboxFault("gone", code="lost")

    rollout = play(play.says("", play.call("run")), sandbox=Lost(), settings=AgentSettings(tools=("run",)))
    with pytest.raises(SandboxFault, match="gone"):
        await rollout.run()
    assert (await rollout.handler.run_exception(rollout.job, SandboxFault("gone")))["turns"] == 1


async def test_an_aborted_reply_is_the_models_fault(play):
    with pytest.raises(ModelFault, match="aborted"):
        await play(play.says("par", finish="abort")).run()


async def test_a_tool_that_breaks_is_an_observation_and_no_way_to_have_a_sample_masked(play):
    class Broken:
        name, aliases, needs_sandbox = "broken", (), False

        def schema(self):
            return ToolSchema(name="broken", description="", parameters={})

        async def call(self, arguments, context):
            raise KeyError("oops")

    played = play(
        play.says("", play.call("broken")),
        play.says("42"),
        tools=[Broken()],
        settings=AgentSettings(tools=("broken",)),
    )
    output = await played.run()
    assert output["ended"] == "answer"
    assert (output["tool_errors"], output["tool_crashes"]) == (1, 1)


async def test_a_long_observation_loses_its_middle(play):
    class Long:
        name, aliases, needs_sandbox = "long", (), False

        def schema(self):
            return ToolSchema(name="long", description="", parameters={})

        async def call(self, arguments, context):
            assert context.output_chars == 1000
            return Observation(text="a" * 5000 + "z" * 5000)

    settings = AgentSettings(tools=("long",), observation_chars=1000)
    rollout = play(play.says("", play.call("long")), play.says("4"), tools=[Long()], settings=settings)
    await rollout.run()
    [[observed]] = rollout.chat.observed
    assert len(observed.content) <= 1000
    assert observed.content.startswith("aaa")
    assert observed.content.endswith("zzz")
    assert "9000 characters cut" in observed.content
