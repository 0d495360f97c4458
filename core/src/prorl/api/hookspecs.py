"""The hooks a plugin may implement, all of them sync, doing no I/O, returning lists of records.

A plugin is a module named by an entry point in the group ``prorl``::

    # pyproject.toml
    [project.entry - points.prorl]
    mytask = "mytask.plugin"

    # mytask/plugin.py
    from prorl.api import HandlerRecord, hookimpl


    @hookimpl
    def prorl_agent_handlers():
        from mytask.handler import MyHandler

        return [HandlerRecord(name="mytask", factory=MyHandler, summary="what it does")]

The built-in tools, runtimes, dialects and commands are registered in the same way.
"""

from __future__ import annotations

import pluggy

from prorl.api.records import (
    CommandRecord,
    DemoRecord,
    DialectRecord,
    HandlerRecord,
    RuntimeRecord,
    SettingsRecord,
    ToolRecord,
)

ENTRY_POINT_GROUP = "prorl"

hookspec = pluggy.HookspecMarker("prorl")
hookimpl = pluggy.HookimplMarker("prorl")


@hookspec
def prorl_agent_handlers() -> list[HandlerRecord]:  # type: ignore[empty-body]
    """Task domains. ``return [HandlerRecord(name="math", factory=MathHandler, summary="...", prefixes=("amc",))]``"""


@hookspec
def prorl_tool_backends() -> list[ToolRecord]:  # type: ignore[empty-body]
    """What agents may call. ``return [ToolRecord(name="think", factory=Think, summary="...")]``"""


@hookspec
def prorl_sandbox_runtimes() -> list[RuntimeRecord]:  # type: ignore[empty-body]
    """Kinds of sandbox. ``return [RuntimeRecord(name="bubblewrap", factory=Bubblewrap, summary="...")]``"""


@hookspec
def prorl_llm_dialects() -> list[DialectRecord]:  # type: ignore[empty-body]
    """Engines' HTTP. ``return [DialectRecord(name="vllm", factory=VllmFactory(), summary="...")]``"""


@hookspec
def prorl_settings() -> list[SettingsRecord]:  # type: ignore[empty-body]
    """Tables of prorl.toml that no request changes.
    ``return [SettingsRecord(name="mytask", type=MyTable, summary="...")]``"""


@hookspec
def prorl_commands() -> list[CommandRecord]:  # type: ignore[empty-body]
    """Subcommands. ``return [CommandRecord(name="mytask", load=load_command, summary="...")]``"""


@hookspec
def prorl_demos() -> list[DemoRecord]:  # type: ignore[empty-body]
    """What ``prorl demo`` shows of a domain. ``return [DemoRecord(name="math", domain="math", rows=ROWS, ...)]``"""
