"""bash and IPython as a model sees them."""

from __future__ import annotations

import msgspec
import pytest

from prorl.api import SandboxFault, ToolContext
from prorl.tools import execute
from prorl.tools.execute import ExecuteBash, ExecuteIPythonCell

bash, ipython = ExecuteBash(), ExecuteIPythonCell()


async def test_bash_shows_output_directory_and_exit_code(context) -> None:
    seen = await bash.call({"command": "echo hi; cd /usr; (exit 3)"}, context)
    assert seen.text == "hi\n[Current working directory: /usr]\n[Command finished with exit code 3]"
    assert not seen.is_error
    assert not seen.done
    assert seen.data == {"outcome": "ok", "exit_code": 3, "cwd": "/usr", "state_lost": False}


async def test_bash_that_prints_nothing(context) -> None:
    seen = await bash.call({"command": "cd /usr"}, context)
    assert seen.text == "[Current working directory: /usr]\n[Command finished with exit code 0]"


async def test_bash_that_loses_its_shell_says_so(context) -> None:
    seen = await bash.call({"command": "cd /usr; echo bye; exit 2"}, context)
    assert "[Command finished with exit code 2]" in seen.text
    assert "[The shell ended (exit code 2). Its state is lost.]" in seen.text


@pytest.mark.parametrize("requested", ["nan", 0.3, "0.3", 99999, None, -1])
async def test_the_context_caps_the_timeout(context, requested) -> None:
    tight = msgspec.structs.replace(context, timeout=0.3)
    for tool, arguments in ((bash, {"command": "sleep 60"}), (ipython, {"code": "import time; time.sleep(60)"})):
        seen = await tool.call({**arguments, "timeout": requested}, tight)
        assert seen.is_error
        assert seen.data["outcome"] == "timeout"
        assert "did not end within 0.3 seconds" in seen.text


async def test_a_shorter_timeout_is_the_models_own(context) -> None:
    seen = await bash.call({"command": "sleep 60", "timeout": 0.2}, context)
    assert "did not end within 0.2 seconds" in seen.text


async def test_output_is_cut_to_the_context(context) -> None:
    short = msgspec.structs.replace(context, output_chars=1000)
    for tool, arguments in ((bash, {"command": "seq 9999"}), (ipython, {"code": "print('x' * 9999)"})):
        seen = await tool.call(arguments, short)
        assert "characters left out" in seen.text
        assert len(seen.text) <= 1000
        path = seen.text.rpartition("[The full output is in ")[2].rstrip("]")
        assert (await bash.call({"command": f"wc -l < {path}"}, context)).text.split("\n")[0] in ("9999", "1")


async def test_input_without_a_running_command(context) -> None:
    seen = await bash.call({"command": "y", "is_input": "true"}, context)
    assert seen.is_error
    assert "no command is running" in seen.text


@pytest.fixture
def impatient(monkeypatch) -> None:
    monkeypatch.setattr(execute, "QUIET_S", 0.3)


async def test_a_quiet_command_is_continued(context, impatient) -> None:
    seen = await bash.call({"command": "read name; echo hi $name"}, context)
    assert not seen.is_error
    assert "still running (exit code -1)" in seen.text
    busy = await bash.call({"command": "ls"}, context)
    assert busy.is_error
    assert "still running" in busy.text
    assert "still running" in (await bash.call({"command": "", "is_input": True}, context)).text
    done = await bash.call({"command": "Ada", "is_input": True}, context)
    assert done.text.startswith("hi Ada\n")
    assert "exit code 0]" in done.text


@pytest.mark.parametrize(
    ("key", "says"), [("C-c", "exit code 130]"), ("c-d", "exit code 0]"), ("C-z", "no job control")]
)
async def test_keys(context, impatient, key: str, says: str) -> None:
    await bash.call({"command": "cat"}, context)
    assert says in (await bash.call({"command": key, "is_input": True}, context)).text


async def test_a_timeout_of_the_models_own_is_no_quiet_time(context, impatient) -> None:
    seen = await bash.call({"command": "sleep 0.6; echo done", "timeout": 30}, context)
    assert seen.text.startswith("done\n")


@pytest.mark.parametrize(
    "arguments",
    [
        {"cmd": "echo hi"},
        {"command": "echo hi", "is_input": None, "timeout": None},
        {"command": "echo hi", "is_input": "false", "timeout": "20"},
    ],
)
async def test_what_models_write_for_what_they_mean(context, arguments) -> None:
    assert (await bash.call(arguments, context)).text.startswith("hi\n")


async def test_ipython_shows_values_and_keeps_state(context) -> None:
    assert (await ipython.call({"code": "x = 20"}, context)).text == "[The cell printed nothing]"
    assert (await ipython.call({"code": "x * 2 + 2"}, context)).text == "42"
    seen = await ipython.call({"code": "1/0"}, context)
    assert seen.is_error
    assert "ZeroDivisionError: division by zero" in seen.text
    assert seen.data["raised"] == "ZeroDivisionError"


async def test_what_makes_ipython_fast_is_an_action_that_there_is(context) -> None:
    assert ipython.early == ("warm",)
    assert bash.early == ()
    for action in ipython.early:
        assert (await context.sandbox.act(action, {}, timeout=60)).outcome == "ok"


@pytest.mark.parametrize(("tool", "arguments"), [(bash, {"command": "true"}), (ipython, {"code": "1"})])
async def test_no_sandbox_and_lost_sandbox_are_faults(context, nowhere, tool, arguments) -> None:
    assert tool.needs_sandbox
    with pytest.raises(SandboxFault, match="needs a sandbox"):
        await tool.call(arguments, nowhere)
    await context.sandbox.stop()
    with pytest.raises(SandboxFault):
        await tool.call(arguments, context)


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        (bash, {}, "missing required field `command`"),
        (bash, {"command": None}, "Expected `str`, got `null` - at `$.command`"),
        (bash, {"command": ["ls"]}, "Expected `str`, got `array` - at `$.command`"),
        (bash, {"command": "ls", "cmd": "x"}, "unknown field `cmd`"),
        (bash, {"command": "ls", "timeout": "soon"}, "at `$.timeout`"),
        (bash, {"command": "ls", "is_input": "perhaps"}, "at `$.is_input`"),
        (bash, {"command": '["ls"]', "timeout": []}, "Expected `float | null`, got `array` - at `$.timeout`"),
        (bash, {"arguments": {"command": "ls"}}, "unknown field `arguments`"),
        (ipython, {"code": 5}, "Expected `str`, got `int` - at `$.code`"),
        (ipython, {"source": "1"}, "unknown field `source`"),
    ],
)
async def test_bad_arguments_are_told_to_the_model(nowhere: ToolContext, tool, arguments, message: str) -> None:
    seen = await tool.call(arguments, nowhere)
    assert seen.is_error
    assert message in seen.text
    assert seen.text.startswith(f"{tool.name}: ")
    assert "(required)" in seen.text


@pytest.mark.parametrize("arguments", [{"command": "a\0b"}, {"command": "\ud800"}, {"command": "x" * 2_000_000}])
async def test_what_no_command_can_be_is_an_observation(context, arguments) -> None:
    seen = await bash.call(arguments, context)
    assert seen.text
    assert (await bash.call({"command": "echo on"}, context)).text.startswith("on\n")
