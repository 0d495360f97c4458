"""A domain, and a tool, that tell what the server's owner has set for them in a table of prorl.toml."""

from __future__ import annotations

import msgspec

from prorl.agent import AgentSettings, ToolAgentHandler
from prorl.api import HandlerRecord, Message, Observation, SettingsRecord, ToolRecord, hookimpl
from prorl.tools.base import StructTool


class Library(msgspec.Struct, frozen=True, kw_only=True):
    folder: str = "/books"
    loans: int = 3


class NeverDeclared(msgspec.Struct):
    pass


class ShelfArguments(msgspec.Struct, forbid_unknown_fields=True):
    pass


class Shelf(StructTool[ShelfArguments]):
    name = "shelf"
    description = "Say where the books are."
    arguments = ShelfArguments

    async def run(self, arguments, context):
        return Observation(text=f"they are in {context.table(Library).folder}")


class Reader(ToolAgentHandler):
    """Row fields: ``lost`` asks for a table that nobody has declared."""

    tools = ("shelf", "finish")

    def messages(self, job):
        return [Message(role="user", content="Where are the books?")]

    async def grade(self, job):
        table = job.services.table(NeverDeclared if job.instance.get("lost") else Library)
        return {"reward": 1.0, "artifacts": {"table": msgspec.to_builtins(table)}}


@hookimpl
def prorl_agent_handlers():
    return [HandlerRecord(name="reader", factory=Reader, summary="reads", settings=AgentSettings)]


@hookimpl
def prorl_tool_backends():
    return [ToolRecord(name="shelf", factory=Shelf, summary="says where the books are")]


@hookimpl
def prorl_settings():
    return [SettingsRecord(name="library", type=Library, summary="where the books are")]
