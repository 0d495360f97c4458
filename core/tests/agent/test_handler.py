"""What an author gets for a prompt and a grade."""

import msgspec
import pytest

from prorl.agent import AgentSettings
from prorl.api import BudgetExceeded, ConfigError, GraderFault, JobCancelled, Message, SandboxSpec, TaskFault


async def test_twenty_lines_make_a_domain(play):
    rollout = play(play.says("4"))
    await rollout.run()
    verdict = await rollout.eval()
    assert (verdict["reward"], verdict["reason"]) == (1.0, "equal")
    assert verdict["metrics"] == {
        "ended": "answer",
        "turns": 1,
        "tool_calls": 0,
        "tool_errors": 0,
        "bad_calls": 0,
        "tool_crashes": 0,
        "reminders": 0,
        "cut_replies": 0,
        "cut_observations": 0,
        "compactions": 0,
        "own": 1,
    }
    assert [message.role for message in rollout.chat.opened] == ["system", "user"]


@pytest.mark.parametrize(
    ("own", "set_to", "seen"),
    [
        ([], None, ["You add numbers."]),
        ([], "Be brief.", ["Be brief."]),
        ([], "", []),
        (["from the row"], None, ["from the row"]),
        (["from the row"], "Be brief.", ["Be brief."]),
        (["from the row"], "", []),
    ],
)
async def test_whose_system_prompt_counts(play, own, set_to, seen):
    class Rows(play.Sums):
        def messages(self, job):
            return [*(Message(role="system", content=text) for text in own), *super().messages(job)]

    rollout = play(play.says("4"), handler=Rows(), system_prompt=set_to)
    await rollout.run()
    assert [message.content for message in rollout.chat.opened if message.role == "system"] == seen


async def test_a_sandbox_starts_only_for_a_tool_that_needs_it(play):
    rollout = play(play.says("4"))
    await rollout.init()
    assert rollout.services.started == []
    assert rollout.job.runtime is None

    spec = SandboxSpec(network=True)
    sandbox = object()
    wanting = play(settings=AgentSettings(tools=("run",), runtime="local", sandbox=spec), sandbox=sandbox)
    await wanting.init()
    assert wanting.services.started == [(spec, "local")]
    assert wanting.job.runtime is sandbox
    assert wanting.job.config["tools"] == ["run"]


async def test_tools_have_the_sandbox_made_ready_early(play):
    asked = []

    class Sandbox:
        async def act(self, action, arguments, *, timeout):
            asked.append((action, arguments))

    class Slow:
        name, aliases, needs_sandbox, early = "slow", (), True, ("warm",)

    rollout = play(settings=AgentSettings(tools=("slow", "finish")), sandbox=Sandbox(), tools=[Slow()])
    await rollout.init()
    assert asked == [("warm", {})]


async def test_a_tool_of_the_job_takes_the_place_of_its_namesake(play):
    class Bound:
        name, aliases, needs_sandbox = "finish", (), False

    class Own(play.Sums):
        def more_tools(self, job):
            return [Bound()]

    rollout = play(handler=Own(), settings=AgentSettings(tools=("add", "finish")))
    await rollout.init()
    assert rollout.job.config["tools"] == ["add", "finish"]


async def test_prepare_sees_the_sandbox_and_fills_the_metadata(play):
    class Prepared(play.Sums):
        async def prepare(self, job, sandbox):
            return {"sandbox": sandbox}

    rollout = play(handler=Prepared(), settings=AgentSettings(tools=("run",)), sandbox="it")
    await rollout.init()
    assert rollout.job.metadata == {"sandbox": "it"}


async def test_a_bad_row_fails_before_a_sandbox_is_started(play):
    rollout = play(settings=AgentSettings(tools=("run",)), instance={"gold": "4"})
    with pytest.raises(TaskFault, match="KeyError: 'sum'"):
        await rollout.init()
    assert rollout.services.started == []


async def test_an_unknown_tool_in_the_settings_is_a_task_fault(play):
    with pytest.raises(TaskFault, match="no plugin offers the tool fly") as caught:
        await play(settings=AgentSettings(tools=("fly",))).init()
    assert caught.value.code == "unknown_tool"


async def test_a_grade_that_breaks_masks_the_sample(play):
    class Broken(play.Sums):
        async def grade(self, job):
            return {"reward": 1 / 0}

    rollout = play(play.says("4"), handler=Broken())
    await rollout.run()
    with pytest.raises(GraderFault, match="ZeroDivisionError") as caught:
        await rollout.eval()
    assert caught.value.masks
    assert rollout.handler.eval_exception(rollout.job, caught.value)["metrics"]["turns"] == 1


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (BudgetExceeded("run"), "timeout"),
        (TimeoutError(), "timeout"),
        (JobCancelled("asked"), "cancelled"),
        (OSError(), "fault"),
    ],
)
async def test_a_run_that_fails_leaves_its_work(play, error, ended):
    rollout = play(play.says("so far", play.call("add", a=1, b=1)), error)
    with pytest.raises(type(error)):
        await rollout.run()
    output = await rollout.handler.run_exception(rollout.job, error)
    assert (output["answer"], output["turns"], output["ended"]) == ("so far", 1, ended)


@pytest.mark.parametrize("error", [None, BudgetExceeded("run")])
async def test_what_the_agent_leaves_behind_is_collected_however_the_run_ends(play, error):
    class Leaves(play.Sums):
        async def collect(self, job):
            return {"left": job.run_output["ended"]}

    rollout = play(error or play.says("4"), handler=Leaves())
    if error is None:
        output = await rollout.run()
    else:
        with pytest.raises(BudgetExceeded):
            await rollout.run()
        output = await rollout.handler.run_exception(rollout.job, error)
    assert output["left"] == output["ended"] == ("answer" if error is None else "timeout")
    assert "left" not in (await rollout.eval())["metrics"]


async def test_settings_of_another_kind_are_refused(play):
    class Other(msgspec.Struct):
        pass

    with pytest.raises(ConfigError, match="Other must inherit from AgentSettings"):
        await play(settings=Other()).init()


async def test_a_job_without_settings_takes_the_defaults(play):
    rollout = play(play.says("4"))
    rollout.job.settings = None
    assert (await rollout.run())["ended"] == "answer"


@pytest.mark.parametrize("bad", [{"max_turns": 0}, {"tool_timeout_s": -1}, {"no_such": 1}, {"max_turns": "3"}])
def test_settings_are_checked(bad):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(bad, AgentSettings)
