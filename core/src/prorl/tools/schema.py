"""From an argument Struct to the JSON schema a model is shown: one self-contained object, ``$ref``s put in place."""

from __future__ import annotations

from typing import Any

import msgspec


def parameters(arguments: type[msgspec.Struct]) -> dict[str, Any]:
    """The schema of a tool's arguments. Descriptions come from ``Annotated[..., msgspec.Meta(description=...)]``."""
    (schema,), components = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    resolved: dict[str, Any] = _resolve(schema, components, ())
    resolved.pop("title", None)
    resolved.pop("description", None)
    return resolved


def _resolve(node: Any, components: dict[str, Any], above: tuple[str, ...]) -> Any:
    if isinstance(node, list):
        return [_resolve(item, components, above) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        if name in above:
            raise TypeError(f"tool arguments must not be recursive: {name}")
        rest = {key: value for key, value in node.items() if key != "$ref"}
        return _resolve({**components[name], **rest}, components, (*above, name))
    return {key: _resolve(value, components, above) for key, value in node.items()}
