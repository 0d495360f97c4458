"""Contexts that fill up, sub-agents and tool formats, on a real server whose model plays a script."""

import asyncio
from collections import Counter

import pytest

from prorl.agent import AgentSettings, ToolAgentHandler, run_agent, run_agents
from prorl.api import HandlerRecord, Message, Observation, SandboxFault, ToolSchema
from prorl.llm.toolformats import formats
from prorl.testing.lab import Lab
from prorl.wire.soundness import check_result
from prorl.wire.trajectory import ToolCall

FORMATS = formats()


def written(name, *, tool_format="hermes", **arguments):
    return FORMATS[tool_format].write(ToolCall(name=name, arguments=arguments))


class Fetch:
    """As many words as it is asked for."""

    name, aliases, needs_sandbox = "fetch", (), False

    def schema(self):
        count = {"type": "object", "properties": {"words": {"type": "integer"}}, "required": ["words"]}
        return ToolSchema(name="fetch", description="Fetch words.", parameters=count)

    async def call(self, arguments, context):
        if not isinstance(arguments.get("words"), int):
            return Observation(text=f"Error: words must be an integer, not {arguments!r}", is_error=True)
        return Observation(text="word " * arguments["words"])


class Reads(ToolAgentHandler):
    tools = ("finish",)

    def messages(self, job):
        return [Message(role="user", content="Fetch words until you know.")]

    def more_tools(self, job):
        return [Fetch()]

    async def grade(self, job):
        return {"reward": float(job.run_output["answer"] == "known")}


def lab(policy, handler, **options):
    record = HandlerRecord(name="it", factory=handler, summary="for this test", settings=AgentSettings)
    return Lab(policy, handlers=[record], **options)


def check_tokens(result):
    """What every trajectory must be, by the checks that trainers run."""
    assert result.trajectory.trainable
    assert check_result(result) == []


def test_a_full_context_ends_with_a_name_and_stays_a_sample():
    with lab(lambda request: written("fetch", words=60), Reads, max_context=2_000) as server:
        result = server.rollout({}, domain="it", settings={"min_observation_tokens": 10_000})
    assert result.status == "completed"
    assert result.error is None
    assert not result.mask_sample
    assert result.metrics["ended"] == "context"
    assert 1 < result.metrics["turns"] < 16
    assert any("the context is full" in note for note in result.trajectory.notes)
    [segment] = result.trajectory.segments
    assert len(segment.tokens) <= 2_000 - 64
    check_tokens(result)


def test_an_observation_is_cut_to_what_fits():
    with lab([written("fetch", words=5_000), written("finish", message="known")], Reads, max_context=2_000) as server:
        result = server.rollout({}, domain="it")
    assert (result.reward, result.metrics["cut_observations"]) == (1.0, 1)
    [observed] = [turn for turn in result.trajectory.turns if turn.role == "tool"]
    assert "characters cut" in observed.text
    assert observed.end > 1_000, "most of the room is used"
    check_tokens(result)


def test_compaction_makes_new_segments_of_the_same_trajectory():
    def policy(request):
        return written("finish", message="known") if fetched() > 8 else written("fetch", words=60)

    def fetched():
        return len(server.engine.requests)

    with lab(policy, Reads, max_context=2_000) as server:
        result = server.rollout({}, domain="it", settings={"context": "compact", "max_compactions": 10})
    assert (result.reward, result.metrics["ended"], result.metrics["turns"]) == (1.0, "finish", 9)
    first, *later = result.trajectory.segments
    assert (first.origin, first.parent) == ("open", None)
    assert len(later) == result.metrics["compactions"] >= 2
    assert [(segment.origin, segment.parent) for segment in later] == [("compaction", i) for i in range(len(later))]
    for turn in result.trajectory.turns:
        if turn.segment and turn.role == "prompt":
            assert "Fetch words until you know." in turn.text
            assert "was left out for want of room" in turn.text
            assert written("fetch", words=60) in turn.text, "its latest calls are in the model's own form"
    check_tokens(result)


class Debate(Reads):
    """The main agent answers; critics look at it side by side, each with a tool; one is asked twice."""

    async def run(self, job):
        output = await super().run(job)
        asked = [Message(role="user", content=f"Critic {i}: is {output['answer']!r} right?") for i in range(6)]
        views = await run_agents(
            job,
            {f"critic-{index}": [message] for index, message in enumerate(asked)},
            tools=[Fetch(), "finish"],
            settings=AgentSettings(max_turns=5),
        )
        return {**output, "views": list(views.values())}

    async def eval(self, job):
        verdict = await super().eval(job)
        verdict["metrics"]["critics"] = [dict(view) for view in job.run_output["views"]]
        return verdict


def test_sub_agents_side_by_side():
    def policy(request):
        if "Critic" not in request.prompt:
            return [written("fetch", words=1), written("finish", message="known")][request.call]
        index = int(request.prompt.split("Critic ")[1][0])
        steps = [written("fetch", words=1)] * index + [written("finish", message=f"view {index}")]
        return steps[request.call]

    with lab(policy, Debate) as server:
        result = server.rollout({}, domain="it")
    assert result.error is None
    assert result.reward == 1.0
    assert (result.metrics["turns"], result.metrics["tool_calls"]) == (2, 2), "the main agent's own counts"
    critics = result.metrics["critics"]
    assert [critic["answer"] for critic in critics] == [*(f"view {index}" for index in range(5)), ""]
    assert [critic["turns"] for critic in critics] == [1, 2, 3, 4, 5, 5]
    assert critics[4]["ended"] == "finish"
    assert critics[5]["ended"] == "max_turns"
    segments = result.trajectory.segments
    assert Counter(segment.agent for segment in segments) == Counter(["", *(f"critic-{i}" for i in range(6))])
    for index, segment in enumerate(segments):
        turns = [turn for turn in result.trajectory.turns if turn.segment == index and turn.role == "assistant"]
        assert len(turns) == (2 if not segment.agent else critics[int(segment.agent[-1])]["turns"])
    check_tokens(result)


def test_when_one_of_several_fails_the_others_end_first():
    states = []

    class Waits(Fetch):
        async def call(self, arguments, context):
            if arguments["words"] == 3:
                raise SandboxFault("gone", code="lost")
            states.append("waits")
            try:
                await asyncio.Event().wait()
            finally:
                states.append("ended")

    class Several(Reads):
        async def run(self, job):
            prompts = {f"a{i}": [Message(role="user", content=f"Agent {i}")] for i in range(1, 4)}
            try:
                return await run_agents(job, prompts, tools=[Waits()])
            finally:
                states.append("raised")

    async def policy(request):
        index = int(request.prompt.split("Agent ")[1][0])
        while index == 3 and states.count("waits") < 2:  # noqa: ASYNC110 - the tools run on another loop
            await asyncio.sleep(0.01)
        return written("fetch", words=index)

    with lab(policy, Several) as server:
        result = server.rollout({}, domain="it")
    assert result.error is not None
    assert (result.error.kind, result.error.code) == ("sandbox", "lost")
    assert states == ["waits", "waits", "ended", "ended", "raised"]


def test_a_summary_by_the_model_itself():
    """The example of the hook's own documentation."""

    class Sums(Reads):
        system_prompt = "You fetch."

        async def compact(self, job, messages, chars):
            chat = job.services.chat("summariser")
            story = "\n".join(f"{message.role}: {message.content}" for message in messages[1:])
            await chat.open([Message(role="user", content=f"Sum up in a few lines:\n{story[-chars:]}")])
            summary = (await chat.reply(max_tokens=500)).answer
            return [*messages[:1], Message(role="user", content=f"What happened so far: {summary}\nGo on.")]

    def policy(request):
        if "Sum up in a few lines" in request.prompt:
            return "words were fetched"
        done = "What happened so far: words were fetched" in request.prompt
        return written("finish", message="known") if done else written("fetch", words=60)

    with lab(policy, Sums, max_context=2_000) as server:
        result = server.rollout({}, domain="it", settings={"context": "compact"})
    assert result.error is None
    assert (result.reward, result.metrics["compactions"]) == (1.0, 1)
    origins = [(segment.agent, segment.origin, segment.parent) for segment in result.trajectory.segments]
    assert origins == [("", "open", None), ("summariser", "open", None), ("", "compaction", 0)]
    check_tokens(result)


def test_a_sub_agent_whose_prompt_does_not_fit_fails_alone():
    class Long(Reads):
        async def run(self, job):
            output = await super().run(job)
            view = await run_agent(job, "critic", [Message(role="user", content="word " * 5_000)])
            return {**output, "reply": view["ended"]}

        async def grade(self, job):
            return {"reward": 1.0, "metrics": {"critic": job.run_output["reply"]}}

    with lab(["known"], Long, max_context=2_000) as server:
        result = server.rollout({}, domain="it")
    assert (result.error, result.metrics["critic"], result.metrics["ended"]) == (None, "context", "answer")


@pytest.mark.parametrize(("arguments", "code"), [({"name": ""}, "agent"), ({"tools": ["fly"]}, "unknown_tool")])
def test_a_sub_agent_that_cannot_be(arguments, code):
    class Bad(Reads):
        async def run(self, job):
            options = {"name": "critic", **arguments}
            return dict(await run_agent(job, options.pop("name"), [], **options))

    with lab([], Bad) as server:
        result = server.rollout({}, domain="it")
    assert result.error is not None
    assert (result.error.kind, result.error.code) == ("task", code)


@pytest.mark.parametrize("start", ["I say much: ", "<think>\nI think much: ", written("fetch", words=1)[:30]])
def test_a_reply_that_was_cut_is_told_of_and_the_rollout_goes_on(start):
    replies = [start + "much " * 200, written("finish", message="known")]
    with lab(replies, Reads) as server:
        told = server.rollout({}, domain="it", settings={"max_reply_tokens": 300, "cut_reply": "tell"})
        ended = server.rollout({}, domain="it", settings={"max_reply_tokens": 300})
    assert (told.reward, told.metrics["ended"], told.metrics["cut_replies"]) == (1.0, "finish", 1)
    assert [turn.finish_reason for turn in told.trajectory.turns] == [None, "length", None, "stop"]
    assert "cut off after 300 tokens" in told.trajectory.turns[2].text
    assert (ended.reward, ended.metrics["ended"], ended.metrics["turns"]) == (0.0, "length", 1)
    check_tokens(told)
    check_tokens(ended)


def test_a_tool_made_for_the_job_has_a_sandbox_started():
    class Asks(Fetch):
        needs_sandbox = True

        async def call(self, arguments, context):
            done = await context.sandbox.act("bash", {"command": "echo from inside"}, timeout=30)
            return Observation(text=done.output)

    class Inside(Reads):
        def more_tools(self, job):
            return [Asks()]

    with lab([written("fetch", words=1), written("finish", message="known")], Inside) as server:
        result = server.rollout({}, domain="it")
    assert result.error is None
    assert "from inside" in result.trajectory.turns[2].text


def test_tools_that_cannot_be_made_are_the_tasks_fault():
    class Broken(Reads):
        def more_tools(self, job):
            raise KeyError("oops")

    with lab([], Broken) as server:
        result = server.rollout({}, domain="it")
    assert result.error is not None
    assert result.error.kind == "task"
    assert "the task's tools cannot be made: KeyError: 'oops'" in result.error.message


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_from_the_prompt_to_the_reward(name):
    broken = {
        "hermes": '<tool_call>{"name": "fetch", "arguments": {"words": }}</tool_call>',
        "qwen3-coder": "<tool_call>\n<function=fetch>\n<parameter=words>\n1\n</function>\n</tool_call>",
        "llama-json": '{"name": "fetch", "parameters": {"words": }}',
        "pythonic": "[fetch(words=one)]",
        "function-tag": "<function=fetch>{words: 1}</function>",
    }[name]
    replies = [
        f"I look.\n{written('fetch', tool_format=name, words=3)}",
        broken,
        written("fly", tool_format=name, high=True),
        written("fetch", tool_format=name, words="three"),
        f"<think>\nI could {written('fetch', tool_format=name, words=1)}\n</think>\n\n"
        + written("finish", tool_format=name, message="known"),
    ]
    with lab(replies, Reads) as server:
        result = server.rollout({}, domain="it", rendering={"tool_format": name})
    assert result.error is None
    assert result.reward == 1.0
    assert (result.metrics["turns"], result.metrics["tool_calls"]) == (5, 5)
    assert (result.metrics["bad_calls"], result.metrics["tool_errors"]) == (2, 3)
    seen = [turn.text for turn in result.trajectory.turns if turn.role == "tool"]
    assert "word word word" in seen[0]
    assert FORMATS[name].how in seen[1], "the model is told how to write a call"
    assert "no tool named 'fly'" in seen[2]
    assert "must be an integer" in seen[3]
    calls = [call for turn in result.trajectory.turns for call in turn.tool_calls]
    assert [call.error is None for call in calls] == [True, False, True, True, True]
    assert calls[0].arguments == {"words": 3}
    check_tokens(result)


def test_a_format_that_does_not_exist():
    with lab([], Reads) as server:
        result = server.rollout({}, domain="it", rendering={"tool_format": "morse"})
    assert result.error is not None
    assert (result.error.kind, result.error.code) == ("task", "rendering")
    assert "hermes" in result.error.message
    assert "pythonic" in result.error.message


class Writes(ToolAgentHandler):
    """Graded by a file that the agent leaves, even when its time is up."""

    tools = ("execute_bash", "finish")
    grades_unfinished_runs = True

    def messages(self, job):
        return [Message(role="user", content="Write 42 into the file answer.")]

    async def collect(self, job):
        made = await job.runtime.act("bash", {"command": "cat answer"}, timeout=30)
        return {"file": made.output.strip()}

    async def grade(self, job):
        return {"reward": float(job.run_output["file"] == "42"), "reason": job.run_output["ended"]}


@pytest.mark.parametrize("status", ["completed", "timed_out"])
def test_what_a_run_left_behind_is_graded_also_when_its_time_ends_while_a_command_runs(status):
    late = status == "timed_out"
    last = written("execute_bash", command="sleep 600") if late else written("finish", message="done")
    with lab([written("execute_bash", command="echo 42 > answer"), last], Writes) as running:
        result = running.rollout({}, domain="it", budgets={"run_s": 3} if late else {})
    assert (result.status, result.reward, result.mask_sample) == (status, 1.0, False), result.error
