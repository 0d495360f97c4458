"""A plugin as it should be: one record of every kind that needs no server."""

from __future__ import annotations

import msgspec

from prorl.api import AgentHandler, CommandRecord, HandlerRecord, SettingsRecord, ToolRecord, hookimpl


class GoodSettings(msgspec.Struct, forbid_unknown_fields=True):
    turns: int = 3


class GoodHandler(AgentHandler):
    def init(self, job):
        return None, {}, {}

    def run(self, job):
        return {}

    def eval(self, job):
        return {"reward": 1.0}


@hookimpl
def prorl_agent_handlers():
    return [
        HandlerRecord(
            name="good",
            factory=GoodHandler,
            summary="grades everything 1",
            domains=("openai/gsm8k",),
            prefixes=("riddle", "riddle_hard"),
            settings=GoodSettings,
        )
    ]


@hookimpl
def prorl_tool_backends():
    return [ToolRecord(name="lookup", factory=dict, summary="never called", aliases=("good-lookup", "look-up"))]


@hookimpl
def prorl_settings():
    return [SettingsRecord(name="good", type=GoodSettings, summary="how many turns")]


def load_command():
    import click  # noqa: PLC0415 - listing the command must not import click

    @click.command()
    def good():
        """Say that it works."""
        click.echo("good works")

    return good


@hookimpl
def prorl_commands():
    return [CommandRecord(name="good", load=load_command, summary="say that it works")]
