"""Running things in the sandbox: bash and IPython, in the words of OpenHands that models know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from prorl.api import ActionResult, Observation, ToolContext
from prorl.tools.base import StructTool, capped, sandbox_of

QUIET_S = 10.0  # how long a command may print nothing before the model is asked whether to wait
KEYS = ("C-c", "C-d", "C-z")
STILL_RUNNING = (
    "[The command is still running (exit code -1). With is_input=true: an empty command waits, text is its input, "
    "C-c interrupts it.]"
)
RESERVE = 500  # of the context's characters, for what is said after the output
Timeout = Annotated[float | None, Meta(description="Seconds after which it is ended, with all it started. Optional.")]


class BashArguments(msgspec.Struct, forbid_unknown_fields=True):
    command: Annotated[
        str,
        Meta(
            description="The bash command to execute. With is_input: text for the running command, or one of the keys "
            "C-c (interrupt) and C-d (end of input), or nothing, to wait for more of its output."
        ),
    ]
    is_input: Annotated[
        bool, Meta(description="If true, the command is input for the command that is still running. Optional.")
    ] = False
    timeout: Timeout = None


class ExecuteBash(StructTool[BashArguments]):
    """A command that prints nothing for ``QUIET_S`` and was given no timeout comes back as still running."""

    name = "execute_bash"
    aliases = ("bash",)
    synonyms: ClassVar[Mapping[str, str]] = {"cmd": "command"}
    needs_sandbox = True
    description = (
        "Execute a bash command in a persistent shell: directory, variables and functions last from one call to the "
        "next. A command that prints nothing for a while returns with exit code -1 and keeps running: continue with "
        "is_input. Long output is cut in the middle; its full text is in a file that is named."
    )
    arguments = BashArguments

    async def run(self, arguments: BashArguments, context: ToolContext) -> Observation:
        timeout = capped(arguments.timeout, context)
        request = {
            "command": keys(arguments.command) if arguments.is_input else arguments.command,
            "is_input": arguments.is_input,
            "output_chars": output_chars(context),
            "stdin": "terminal",
            "soft_timeout": QUIET_S if arguments.timeout is None else 0,
            "if_running": "refuse",
        }
        result = await sandbox_of(context).act("bash", request, timeout=timeout)
        footer = []
        if isinstance(cwd := result.data.get("cwd"), str):
            footer.append(f"[Current working directory: {cwd}]")
        code = result.data.get("exit_code")
        if result.data.get("running"):
            footer.append(STILL_RUNNING)
        elif result.outcome == "ok" and isinstance(code, int):
            footer.append(f"[Command finished with exit code {code}]")
        return observation(result, timeout, "command", footer, failed=result.outcome != "ok")


def keys(text: str) -> str:
    """What is typed for ``text``: a line, except for keys and for nothing at all."""
    if not text or text.strip().upper() in (key.upper() for key in KEYS) or text.endswith("\n"):
        return text
    return text + "\n"


class IPythonArguments(msgspec.Struct, forbid_unknown_fields=True):
    code: Annotated[str, Meta(description="The Python code to execute. Magics (%) and shell lines (!) work.")]
    timeout: Timeout = None


class ExecuteIPythonCell(StructTool[IPythonArguments]):
    name = "execute_ipython_cell"
    aliases = ("ipython", "python")
    early = ("warm",)
    needs_sandbox = True
    description = (
        "Run a cell of Python code in a persistent IPython: variables and imports last from one call to the next. "
        "The value of the last expression and everything printed is shown."
    )
    arguments = IPythonArguments

    async def run(self, arguments: IPythonArguments, context: ToolContext) -> Observation:
        timeout = capped(arguments.timeout, context)
        request = {"code": arguments.code, "output_chars": output_chars(context)}
        result = await sandbox_of(context).act("ipython", request, timeout=timeout)
        failed = result.outcome != "ok" or result.data.get("raised") is not None
        return observation(result, timeout, "cell", [], failed=failed)


def output_chars(context: ToolContext) -> int:
    """How much of the output to ask for, so that the whole observation fits."""
    return max(context.output_chars - RESERVE, context.output_chars // 2)


def observation(result: ActionResult, timeout: float, what: str, footer: list[str], *, failed: bool) -> Observation:
    """Output first, then what there is to say about it, one bracketed line each."""
    if result.outcome == "timeout":
        footer.append(f"[The {what} did not end within {timeout:g} seconds and was ended with all it had started]")
    elif result.outcome == "cancelled":
        footer.append(f"[The {what} was cancelled]")
    if result.output_file:
        whole = "full output" if result.output_file_complete else "beginning of the output"
        footer.append(f"[The {whole} is in {result.output_file}]")
    if result.error:
        footer.append(f"[{result.error}]")
    body = result.output.rstrip("\n")
    lines = [body, *footer] if body else footer
    text = "\n".join(lines) or f"[The {what} printed nothing]"
    return Observation(text=text, is_error=failed, data={"outcome": result.outcome, **result.data})
