"""A chat and services that play a script, over the real wire and API types."""

from contextlib import AsyncExitStack

import pytest

from prorl.agent import AgentSettings, ToolAgentHandler
from prorl.api import ConfigError, ContextOverflow, Job, Message, Observation, Reply, ToolSchema
from prorl.wire import JobRequest
from prorl.wire.trajectory import ToolCall


def call(name, **arguments):
    return ToolCall(name=name, arguments=arguments)


def says(text="", *calls, finish="stop"):
    return Reply(text=text, answer=text, tool_calls=list(calls), finish=finish, tokens=len(text))


class ScriptedChat:
    """Plays replies in order; an exception in the script is raised. Everything it was told is kept."""

    def __init__(self, script, opening=None, context=100_000):
        self.script = list(script)
        self.opening = opening
        self.context = context
        self.messages = []
        self.restarts = []
        self.notes = []
        self.opened = self.tools = None
        self.observed = []
        self.limits = []

    async def open(self, messages, tools=()):
        self.opened, self.tools = list(messages), list(tools)
        if self.opening is not None:
            raise self.opening
        self.messages = list(messages)

    @property
    def tokens(self):
        """A character of a message is a token, its role another one."""
        return sum(len(message.content) + 1 for message in self.messages)

    @property
    def room(self):
        return max(0, self.context - self.tokens)

    async def reply(self, *, max_tokens=None):
        self.limits.append(max_tokens)
        step = self.script.pop(0)
        if isinstance(step, BaseException):
            raise step
        self.messages.append(Message(role="assistant", content=step.text, tool_calls=tuple(step.tool_calls)))
        return step

    async def observe(self, messages, *, ms=0.0, keep_free=1):
        needed = sum(len(message.content) + 1 for message in messages)
        if self.room - needed < keep_free:
            raise ContextOverflow(f"{needed} do not fit", needed=needed)
        self.observed.append(list(messages))
        self.messages += messages

    async def restart(self, messages, *, origin, note="", keep_free=1):
        if self.context - sum(len(message.content) + 1 for message in messages) < keep_free:
            raise ContextOverflow("still too long")
        self.restarts.append((origin, list(messages)))
        self.messages = list(messages)

    def note(self, text):
        self.notes.append(text)


class Add:
    name, aliases, needs_sandbox = "add", ("plus",), False

    def schema(self):
        return ToolSchema(name="add", description="Add two numbers.", parameters={"type": "object"})

    async def call(self, arguments, context):
        if not all(isinstance(arguments.get(name), int) for name in ("a", "b")):
            return Observation(text="a and b must be integers", is_error=True)
        return Observation(text=str(arguments["a"] + arguments["b"]))


class Finish:
    name, aliases, needs_sandbox = "finish", (), False

    def schema(self):
        return ToolSchema(name="finish", description="End.", parameters={"type": "object"})

    async def call(self, arguments, context):
        return Observation(text="", done=True, answer=arguments.get("message"))


class InSandbox:
    """Needs a sandbox, and does with it what its ``act`` says."""

    name, aliases, needs_sandbox = "run", (), True

    def schema(self):
        return ToolSchema(name="run", description="Run.", parameters={"type": "object"})

    async def call(self, arguments, context):
        result = await context.sandbox.act("bash", arguments, timeout=context.timeout)
        return Observation(text=result)


class Services:
    def __init__(self, chat, tools, sandbox=None):
        self._chat, self._tools, self._sandbox = chat, {tool.name: tool for tool in tools}, sandbox
        self.events, self.started = [], []
        self.model_s = self.tools_s = 0.0

    async def sandbox(self, spec, *, runtime=None):
        self.started.append((spec, runtime))
        return self._sandbox

    def chat(self, agent=""):
        return self._chat

    def tools(self, names):
        if unknown := [name for name in names if name not in self._tools]:
            raise ConfigError(f"no plugin offers the tool {unknown[0]}")
        return [self._tools[name] for name in names]

    def table(self, kind):
        return kind()

    def emit(self, kind, **data):
        self.events.append((kind, data))

    def spend(self, *, model_s=0.0, tools_s=0.0):
        self.model_s += model_s
        self.tools_s += tools_s


class Sums(ToolAgentHandler):
    """The 20 lines that an author writes."""

    tools = ("add", "finish")
    system_prompt = "You add numbers."

    def messages(self, job):
        return [Message(role="user", content=f"What is {job.instance['sum']}?")]

    async def grade(self, job):
        right = job.run_output["answer"] == job.instance["gold"]
        return {"reward": float(right), "reason": "equal" if right else "not equal", "metrics": {"own": 1}}


class Played:
    """A job over a script, taken through the stages as the pipeline does."""

    def __init__(self, script, *, handler, settings, tools, instance, sandbox, opening, context):
        self.chat = ScriptedChat(script, opening, context)
        self.services = Services(self.chat, tools, sandbox)
        self.handler = handler
        self.job = Job(
            id="j",
            request=JobRequest(instance=instance),
            handler="sums",
            settings=settings,
            services=self.services,
            exit_stack=AsyncExitStack(),
        )

    async def init(self):
        self.job.runtime, self.job.metadata, self.job.config = await self.handler.init(self.job)

    async def run(self):
        await self.init()
        self.job.run_output = await self.handler.run(self.job)
        return self.job.run_output

    async def eval(self):
        self.job.eval_output = await self.handler.eval(self.job)
        return self.job.eval_output


@pytest.fixture
def play():
    def make(
        *script,
        handler=None,
        settings=None,
        tools=(),
        instance=None,
        sandbox=None,
        opening=None,
        context=100_000,
        **changes,
    ):
        return Played(
            script,
            handler=handler or Sums(),
            settings=settings if settings is not None else AgentSettings(**changes),
            tools=[Add(), Finish(), InSandbox(), *tools],
            instance=instance or {"sum": "2 + 2", "gold": "4"},
            sandbox=sandbox,
            opening=opening,
            context=context,
        )

    make.call, make.says, make.Sums = call, says, Sums
    make.Chat, make.Services = ScriptedChat, Services
    return make
