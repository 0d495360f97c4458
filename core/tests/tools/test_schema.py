"""The schemas models are shown."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest

from prorl.tools.base import StructTool
from prorl.tools.plugin import prorl_tool_backends
from prorl.tools.schema import parameters


class Point(msgspec.Struct):
    x: int
    y: int = 0


class Shape(msgspec.Struct, forbid_unknown_fields=True):
    corners: list[Point]
    middle: Annotated[Point | None, msgspec.Meta(description="Where it is.")] = None


class Tree(msgspec.Struct):
    children: list[Tree]


def test_references_are_put_in_place() -> None:
    schema = parameters(Shape)
    assert "$ref" not in repr(schema)
    assert "$defs" not in schema
    assert schema["type"] == "object"
    assert schema["required"] == ["corners"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["corners"]["items"]["properties"]["x"] == {"type": "integer"}


def test_recursion_is_refused() -> None:
    with pytest.raises(TypeError, match="recursive: Tree"):
        parameters(Tree)


@pytest.mark.parametrize("record", prorl_tool_backends(), ids=lambda record: record.name)
def test_every_tool(record) -> None:
    tool = record.factory()
    assert isinstance(tool, StructTool)
    assert (tool.name, tool.aliases) == (record.name, record.aliases)
    schema = tool.schema()
    assert schema.name == record.name
    assert schema.description
    assert schema.parameters["type"] == "object"
    assert schema.parameters["additionalProperties"] is False
    assert "$ref" not in repr(schema.parameters)
    for name, field in schema.parameters["properties"].items():
        assert field.get("description"), name
    assert msgspec.json.decode(msgspec.json.encode(schema))["parameters"] == schema.parameters


def test_names_and_aliases_are_those_models_know() -> None:
    names = {name for record in prorl_tool_backends() for name in (record.name, *record.aliases)}
    assert names == {
        *("execute_bash", "bash"),
        *("execute_ipython_cell", "ipython", "python"),
        *("str_replace_editor", "file_editor", "edit_file", "str_replace_based_edit_tool"),
        *("think", "finish", "submit"),
    }


def test_the_shapes_are_openhands() -> None:
    shapes = {record.name: parameters(record.factory().arguments) for record in prorl_tool_backends()}
    assert set(shapes["execute_bash"]["properties"]) == {"command", "is_input", "timeout"}
    assert shapes["execute_bash"]["required"] == ["command"]
    assert set(shapes["execute_ipython_cell"]["properties"]) == {"code", "timeout"}
    editor = {"command", "path", "file_text", "old_str", "new_str", "insert_line", "view_range"}
    assert set(shapes["str_replace_editor"]["properties"]) == editor
    assert shapes["str_replace_editor"]["required"] == ["command", "path"]
    assert set(shapes["think"]["properties"]) == {"thought"}
    assert set(shapes["finish"]["properties"]) == {"message", "answer"}
    assert "required" not in shapes["finish"] or shapes["finish"]["required"] == []
