"""``/schema``: the routes as a page of its own. It loads nothing from anywhere: clusters have no way out."""

from __future__ import annotations

from html import escape
from typing import Any

from litestar import Request
from litestar.openapi.plugins import JsonRenderPlugin, OpenAPIRenderPlugin, YamlRenderPlugin

_STYLE = (
    "body{font-family:sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "td{padding:.3em 1em .3em 0;vertical-align:top}code{white-space:nowrap}"
)


class RoutesPage(OpenAPIRenderPlugin):
    """Method, path and purpose of every route, and where the whole schema is."""

    def __init__(self) -> None:
        super().__init__(path="/")

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        title = f"{openapi_schema['info']['title']} {openapi_schema['info']['version']}"
        rows = "\n".join(
            f"<tr><td><code>{method.upper()} {escape(path)}</code></td>"
            f"<td>{escape(operation.get('description', ''))}</td></tr>"
            for path, operations in openapi_schema["paths"].items()
            for method, operation in operations.items()
        )
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
            f"<style>{_STYLE}</style></head>\n<body><h1>{escape(title)}</h1>\n"
            '<p>OpenAPI: <a href="/schema/openapi.json">/schema/openapi.json</a>, '
            '<a href="/schema/openapi.yaml">/schema/openapi.yaml</a></p>\n'
            f"<table>\n{rows}\n</table></body></html>\n"
        ).encode()


def schema_pages() -> list[OpenAPIRenderPlugin]:
    return [RoutesPage(), JsonRenderPlugin(), YamlRenderPlugin(path=["/openapi.yaml", "/openapi.yml"])]
