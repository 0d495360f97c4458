"""The base of tools: arguments are checked against a Struct, and what is wrong with them is told to the model.

::

    class EchoArguments(msgspec.Struct, forbid_unknown_fields=True):
        text: Annotated[str, msgspec.Meta(description="What to say.")]


    class Echo(StructTool[EchoArguments]):
        name = "echo"
        description = "Says it again."
        arguments = EchoArguments

        async def run(self, arguments, context):
            return Observation(text=arguments.text)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from prorl.api import Observation, Sandbox, SandboxFault, ToolContext, ToolSchema
from prorl.tools.schema import parameters

Arguments = TypeVar("Arguments", bound=msgspec.Struct)


class StructTool(ABC, Generic[Arguments]):
    """Implements :class:`prorl.api.Tool`. Arguments Structs forbid unknown fields."""

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    needs_sandbox: ClassVar[bool] = False
    description: ClassVar[str]
    arguments: type[Arguments]

    def schema(self) -> ToolSchema:
        return ToolSchema(name=self.name, description=self.description, parameters=parameters(self.arguments))

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Observation:
        """Never raises for what the model wrote; :class:`SandboxFault` when the sandbox is lost."""
        try:
            # Models write "30" for 30 and "true" for true: that much is taken for what it means.
            checked = msgspec.convert(arguments, self.arguments, strict=False)
        except msgspec.ValidationError as error:
            return Observation(text=f"{self.name}: {error}. {self._usage()}", is_error=True)
        return await self.run(checked, context)

    @abstractmethod
    async def run(self, arguments: Arguments, context: ToolContext) -> Observation: ...

    def _usage(self) -> str:
        schema = parameters(self.arguments)
        required = schema.get("required", [])
        named = [f"{name} ({'required' if name in required else 'optional'})" for name in schema.get("properties", {})]
        return f"Arguments: {', '.join(named) or 'none'}."


def sandbox_of(context: ToolContext) -> Sandbox:
    if context.sandbox is None:
        raise SandboxFault("this tool needs a sandbox, and the job has none", code="no_sandbox")
    return context.sandbox


def capped(requested: float | None, context: ToolContext) -> float:
    """The seconds a call may take: what the model asks for, never more than the context allows."""
    if requested is None or requested <= 0:
        return context.timeout
    return min(requested, context.timeout)
