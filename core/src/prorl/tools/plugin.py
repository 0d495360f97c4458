"""The built-in tools, registered like anybody's."""

from __future__ import annotations

from typing import Any

from prorl.api import ToolRecord, hookimpl


@hookimpl
def prorl_tool_backends() -> list[ToolRecord]:
    from prorl.tools.base import StructTool  # noqa: PLC0415 - imports wait until they are needed
    from prorl.tools.edit import StrReplaceEditor  # noqa: PLC0415
    from prorl.tools.execute import ExecuteBash, ExecuteIPythonCell  # noqa: PLC0415
    from prorl.tools.talk import Finish, Think  # noqa: PLC0415

    tools: tuple[tuple[type[StructTool[Any]], str], ...] = (
        (ExecuteBash, "a persistent bash in the sandbox"),
        (ExecuteIPythonCell, "a persistent IPython in the sandbox"),
        (StrReplaceEditor, "views, makes and edits files in the sandbox"),
        (Think, "a thought, logged"),
        (Finish, "the end of the agent's work, with its answer"),
    )
    return [ToolRecord(name=tool.name, factory=tool, summary=summary, aliases=tool.aliases) for tool, summary in tools]
