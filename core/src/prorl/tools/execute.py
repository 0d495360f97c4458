"""Running things in the sandbox: bash and IPython, in the words of OpenHands that models know."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from prorl.api import ActionResult, Observation, ToolContext
from prorl.tools.base import StructTool, capped, sandbox_of

Timeout = Annotated[float | None, Meta(description="Seconds after which it is ended. Optional.")]


class BashArguments(msgspec.Struct, forbid_unknown_fields=True):
    command: Annotated[str, Meta(description="The bash command to execute.")]
    is_input: Annotated[
        bool, Meta(description="If true, the command is input for the running process ('C-c' interrupts it).")
    ] = False
    timeout: Timeout = None


class ExecuteBash(StructTool[BashArguments]):
    name = "execute_bash"
    aliases = ("bash",)
    needs_sandbox = True
    description = (
        "Execute a bash command in a persistent shell: directory, variables and functions last from one call to the "
        "next. Commands get no standard input; use pipes or here-documents. Long output is cut in the middle."
    )
    arguments = BashArguments

    async def run(self, arguments: BashArguments, context: ToolContext) -> Observation:
        timeout = capped(arguments.timeout, context)
        request = {
            "command": arguments.command,
            "is_input": arguments.is_input,
            "output_chars": context.output_chars,
        }
        result = await sandbox_of(context).act("bash", request, timeout=timeout)
        footer = []
        if isinstance(cwd := result.data.get("cwd"), str):
            footer.append(f"[Current working directory: {cwd}]")
        code = result.data.get("exit_code")
        if result.outcome == "ok" and isinstance(code, int):
            footer.append(f"[Command finished with exit code {code}]")
        return observation(result, timeout, "command", footer, failed=result.outcome != "ok")


class IPythonArguments(msgspec.Struct, forbid_unknown_fields=True):
    code: Annotated[str, Meta(description="The Python code to execute. Magics (%) and shell lines (!) work.")]
    timeout: Timeout = None


class ExecuteIPythonCell(StructTool[IPythonArguments]):
    name = "execute_ipython_cell"
    aliases = ("ipython", "python")
    needs_sandbox = True
    description = (
        "Run a cell of Python code in a persistent IPython: variables and imports last from one call to the next. "
        "The value of the last expression and everything printed is shown."
    )
    arguments = IPythonArguments

    async def run(self, arguments: IPythonArguments, context: ToolContext) -> Observation:
        timeout = capped(arguments.timeout, context)
        request = {"code": arguments.code, "output_chars": context.output_chars}
        result = await sandbox_of(context).act("ipython", request, timeout=timeout)
        failed = result.outcome != "ok" or result.data.get("raised") is not None
        return observation(result, timeout, "cell", [], failed=failed)


def observation(result: ActionResult, timeout: float, what: str, footer: list[str], *, failed: bool) -> Observation:
    """Output first, then what there is to say about it, one bracketed line each."""
    if result.outcome == "timeout":
        footer.append(f"[The {what} did not end within {timeout:g} seconds and was ended with all it had started]")
    elif result.outcome == "cancelled":
        footer.append(f"[The {what} was cancelled]")
    if result.error:
        footer.append(f"[{result.error}]")
    body = result.output.rstrip("\n")
    lines = [body, *footer] if body else footer
    text = "\n".join(lines) or f"[The {what} printed nothing]"
    return Observation(text=text, is_error=failed, data={"outcome": result.outcome, **result.data})
