"""The handler over real grading processes; the chat plays a script."""

from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from prorl.api import GraderFault, Job, Observation, Reply, TaskFault, ToolSchema
from prorl.wire import JobRequest
from prorl.wire.trajectory import ToolCall
from prorl_math.handler import MathHandler
from prorl_math.plugin import prorl_agent_handlers
from prorl_math.settings import MathSettings

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Finish:
    name, aliases, needs_sandbox = "finish", (), False

    def schema(self):
        return ToolSchema(name="finish", description="End.", parameters={})

    async def call(self, arguments, context):
        return Observation(text="", done=True, answer=arguments["message"])


class Named:
    aliases, needs_sandbox = (), False

    def __init__(self, name):
        self.name = name


class Chat:
    room = 100_000

    def __init__(self, reply):
        self._reply = reply

    async def open(self, messages, tools=()):
        self.opened = list(messages)

    async def reply(self, *, max_tokens=None):
        return self._reply


class Services:
    def __init__(self, chat):
        self._chat = chat

    def chat(self, agent=""):
        return self._chat

    def tools(self, names):
        return [Finish()] if names == ("finish",) else [Named(name) for name in names]

    def table(self, kind):
        return kind()

    def emit(self, kind, **data):
        pass

    def spend(self, **seconds):
        pass


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def handler():
    handler = MathHandler()
    yield handler
    await handler.close()


async def rollout(handler, row, text, *, finish=None, **settings):
    """One job through the three stages; the verdict."""
    calls = [] if finish is None else [ToolCall(name="finish", arguments={"message": finish})]
    chat = Chat(Reply(text=text, answer=text, tool_calls=calls, finish="stop", tokens=1))
    job = Job(
        id="j",
        request=JobRequest(instance=row),
        handler="math",
        settings=MathSettings(tools=("finish",), **settings),
        services=Services(chat),
        exit_stack=AsyncExitStack(),
    )
    job.runtime, job.metadata, job.config = await handler.init(job)
    job.run_output = await handler.run(job)
    return await handler.eval(job)


ROW = {"problem": "What is the sum of the first ten positive whole numbers?", "answer": "55"}


async def test_right_wrong_and_none(handler):
    right = await rollout(handler, ROW, r"\boxed{55}")
    assert (right["reward"], right["resolved"]) == (1.0, True)
    assert right["metrics"]["predicted"] == "55"
    assert right["metrics"]["gold"] == "55"
    assert right["metrics"]["turns"] == 1
    wrong = await rollout(handler, ROW, r"\boxed{54}", reward_wrong=-0.5)
    assert (wrong["reward"], wrong["resolved"], wrong["reason"]) == (-0.5, False, "another number")
    none = await rollout(handler, ROW, "55", reward_no_answer=-1.0)
    assert (none["reward"], none["reason"]) == (-1.0, "no answer in a box or on an answer line")


@pytest.mark.parametrize(
    ("text", "finish", "reward"),
    [
        ("", r"\boxed{55}", 1.0),
        (r"\boxed{54}", r"\boxed{55}", 1.0),
        (r"\boxed{55}", "done", 1.0),
        (r"\boxed{55}", r"\boxed{54}", 0.0),
    ],
)
async def test_a_finish_message_has_the_last_word_if_it_has_a_box(handler, text, finish, reward):
    assert (await rollout(handler, ROW, text, finish=finish))["reward"] == reward


async def test_own_rows_both_ways(handler, own_rows):
    for row, wrong in zip(own_rows, ["54", "2", "28", "[-3,3]", "2"], strict=True):
        gold = row.get("answer") or row["reward_model"]["ground_truth"]
        assert (await rollout(handler, row, rf"\boxed{{{gold}}}"))["reward"] == 1.0
        assert (await rollout(handler, row, rf"\boxed{{{wrong}}}"))["reward"] == 0.0


async def test_every_shared_gold_is_right_and_a_wrong_number_is_not(handler, shared_rows):
    for row in shared_rows:
        gold = row["answer"] if "answer" in row else row["reward_model"]["ground_truth"]
        right = await rollout(handler, row, rf"\boxed{{{gold}}}")
        assert right["reward"] == 1.0, (gold, right)
        wrong = await rollout(handler, row, r"\boxed{123456789}")
        assert wrong["reward"] == 0.0, (gold, wrong)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "answer",
    [
        "10^{10^{10}}",
        "10^{10^{10^{10}}}",
        "9^{9^{9^{9}}}+1",
        "(10^{10})!",
        r"\sqrt{" * 150 + "2" + "}" * 150,
        r"\sum_{n=1}^{10^{12}} \frac{\sin(n!)}{n}",
        r"\int_0^1 \sin(\cos(\tan(x^{x^{x}}))) dx",
        "(x+y+z+w)^{500}",
        r"\binom{10^{9}}{5\cdot 10^{8}}",
    ],
)
async def test_an_answer_that_never_ends_is_wrong_and_leaves_the_grader_working(handler, answer):
    verdict = await rollout(handler, ROW, rf"\boxed{{{answer}}}", grader_timeout_s=3.0)
    assert verdict["reward"] == 0.0
    assert verdict["reason"]
    assert (await rollout(handler, ROW, r"\boxed{55}"))["reward"] == 1.0


@pytest.mark.parametrize("gold", [r"\frac{a}{", "))(("])
async def test_a_gold_that_cannot_be_read_is_a_fault_before_a_token_is_sampled(handler, gold):
    with pytest.raises(GraderFault, match="gold answer") as caught:
        await rollout(handler, {"problem": "?", "answer": gold}, r"\boxed{1}")
    assert caught.value.code == "bad_gold"
    assert caught.value.masks


async def test_a_gold_as_big_as_you_like_can_be_met(handler):
    row = {"problem": "?", "answer": "10^{10^{10}}"}
    assert (await rollout(handler, row, r"\boxed{10^{10^{10}}}"))["reward"] == 1.0
    assert (await rollout(handler, row, r"\boxed{10^{10^9}}"))["reward"] == 0.0
    assert (await rollout(handler, row, r"\boxed{10^{10^{10}}+1}", grader_timeout_s=3.0))["reward"] == 0.0


async def test_a_bad_row_is_a_task_fault(handler):
    with pytest.raises(TaskFault, match="answer must be"):
        await rollout(handler, {"problem": "?"}, "")


async def test_a_grader_that_is_gone_masks(monkeypatch):
    monkeypatch.setattr("prorl_math.judge.GRADER", "prorl_math.no_such:grade")
    handler = MathHandler()
    try:
        with pytest.raises(GraderFault) as caught:
            await rollout(handler, ROW, r"\boxed{55}")
    finally:
        await handler.close()
    assert caught.value.code == "start"


@pytest.mark.parametrize(
    ("text", "read_from", "reward"),
    [
        ("So.\nAnswer: 55", ("box", "line"), 1.0),
        ("So.\nAnswer: 55", ("box",), -1.0),
        ("Answer: 54\n\\boxed{55}", ("box", "line"), 1.0),
        ("Answer: 54\n\\boxed{55}", ("line", "box"), 0.0),
        ("Answer: 54\n\\boxed{55}", ("line",), 0.0),
        ("\\boxed{55}", ("line",), -1.0),
        ("#### 55", ("box", "line"), 1.0),
        ("<think>Answer: 55</think>", ("box", "line"), -1.0),
    ],
)
async def test_where_the_answer_may_stand(handler, text, read_from, reward):
    assert (await rollout(handler, ROW, text, read_from=read_from, reward_no_answer=-1.0))["reward"] == reward


async def test_a_model_cannot_mask_its_own_sample(handler):
    for text in (r"\boxed{" * 100_000 + "}" * 100_000, "\\boxed{" + "5" * 1_000_000 + "}", "<think>" * 100_000):
        assert (await rollout(handler, ROW, text))["reward"] == 0.0


def prompt_of(handler, **settings):
    job = Job(
        id="j",
        request=JobRequest(instance=settings.pop("row", ROW)),
        handler="math",
        settings=MathSettings(**settings),
        services=Services(None),
        exit_stack=AsyncExitStack(),
    )
    return handler.messages(job)


async def test_the_prompt_speaks_of_the_tools_that_there_are(handler):
    system, user = prompt_of(handler)
    assert (system.role, user.content) == ("system", ROW["problem"])
    assert "IPython" in system.content
    assert "bash" not in system.content
    both = prompt_of(handler, tools=("execute_ipython_cell", "execute_bash"))[0].content
    assert "IPython" in both
    assert "bash" in both
    none = prompt_of(handler, tools=())[0].content
    assert "Use" not in none
    assert r"\boxed{}" in none


async def test_a_row_or_the_settings_may_bring_their_own_prompt(handler, own_rows):
    assert prompt_of(handler, row=own_rows[3])[0].content == "Think first."
    assert [message.role for message in prompt_of(handler, system_prompt="")] == ["user"]


async def test_the_record():
    [record] = prorl_agent_handlers()
    assert record.name == "math"
    assert isinstance(record.factory(), MathHandler)
    assert record.settings is MathSettings
    sources = ["DigitalLearningGmbH/MATH-lighteval", "math_dapo", "amc", "aime2024", "numina_olympiads", "openai/gsm8k"]
    assert all(source in record.domains or source.startswith(record.prefixes) for source in sources)
