"""Tools that touch nothing: thinking aloud, and saying that one is done."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from prorl.api import Observation, ToolContext
from prorl.tools.base import StructTool


class ThinkArguments(msgspec.Struct, forbid_unknown_fields=True):
    thought: Annotated[str, Meta(description="The thought to log.")]


class Think(StructTool[ThinkArguments]):
    name = "think"
    description = "Think about something. It gets no new information and changes nothing; the thought is logged."
    arguments = ThinkArguments

    async def run(self, arguments: ThinkArguments, context: ToolContext) -> Observation:
        return Observation(text="Your thought has been logged.")


class FinishArguments(msgspec.Struct, forbid_unknown_fields=True):
    message: Annotated[str | None, Meta(description="The final answer, or what was done.")] = None
    answer: Annotated[str | None, Meta(description="The final answer, where the task asks for one.")] = None


class Finish(StructTool[FinishArguments]):
    name = "finish"
    aliases = ("submit",)
    description = "End the task. Call it once, when the work is done or can get no further."
    arguments = FinishArguments

    async def run(self, arguments: FinishArguments, context: ToolContext) -> Observation:
        answer = arguments.answer if arguments.answer is not None else arguments.message
        return Observation(text=arguments.message or "Finished.", done=True, answer=answer)
