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
from collections.abc import Mapping
from functools import cached_property
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
    synonyms: ClassVar[Mapping[str, str]] = {}  # arguments' names in other conventions, where nothing else can be meant
    early: ClassVar[tuple[str, ...]] = ()  # sandbox actions that make the first call fast; sent when the sandbox is up
    description: ClassVar[str]
    arguments: type[Arguments]

    @cached_property
    def _fields(self) -> dict[str, msgspec.structs.FieldInfo]:
        return {field.name: field for field in msgspec.structs.fields(self.arguments)}

    def schema(self) -> ToolSchema:
        return ToolSchema(name=self.name, description=self.description, parameters=parameters(self.arguments))

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Observation:
        """Never raises for what the model wrote; :class:`SandboxFault` when the sandbox is lost."""
        try:
            checked = self._check(arguments)
        except msgspec.ValidationError as error:
            return Observation(text=f"{self.name}: {error}. {self._usage()}", is_error=True)
        return await self.run(checked, context)

    def _check(self, written: dict[str, Any]) -> Arguments:
        """Models write "30" for 30, null for nothing and lists as strings: that much is taken for what it means."""
        fields = self._fields
        given: dict[str, Any] = {}
        for name, value in written.items():
            meant = self.synonyms.get(name, name)
            name_used = name if meant in written else meant
            known = fields.get(name_used)
            if value is None and known is not None and not known.required:
                continue
            given[name_used] = value
        try:
            return msgspec.convert(given, self.arguments, strict=False)
        except msgspec.ValidationError:
            decoded = {name: _decoded(value) for name, value in given.items()}
            if decoded == given:
                raise
            try:
                return msgspec.convert(decoded, self.arguments, strict=False)
            except msgspec.ValidationError:
                pass
            raise

    @abstractmethod
    async def run(self, arguments: Arguments, context: ToolContext) -> Observation: ...

    def _usage(self) -> str:
        schema = parameters(self.arguments)
        required = schema.get("required", [])
        named = [f"{name} ({'required' if name in required else 'optional'})" for name in schema.get("properties", {})]
        return f"Arguments: {', '.join(named) or 'none'}."


def _decoded(value: Any) -> Any:
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return value
    return value


def sandbox_of(context: ToolContext) -> Sandbox:
    if context.sandbox is None:
        raise SandboxFault("this tool needs a sandbox, and the job has none", code="no_sandbox")
    return context.sandbox


def capped(requested: float | None, context: ToolContext) -> float:
    """The seconds a call may take: what the model asks for, never more than the context allows."""
    if requested is None or not requested > 0:  # "nan" is a float too
        return context.timeout
    return min(requested, context.timeout)
