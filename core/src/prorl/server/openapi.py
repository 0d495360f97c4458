"""OpenAPI that tells the truth although the routes read raw bodies: the schemas come from the same Structs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from litestar import Litestar
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import OpenAPIMediaType, Operation, Parameter, Reference, RequestBody, Schema

from prorl.server.codec import JSON, MSGPACK, Body
from prorl.wire.backends import BackendSpec, ClearRequest
from prorl.wire.jobs import CancelRequest, JobRequest, StopRequest
from prorl.wire.service import Problem

REQUESTS = (JobRequest, CancelRequest, StopRequest, BackendSpec, ClearRequest)
_REFERENCE = "#/components/schemas/{name}"


@dataclass
class _StructSchema(Schema):
    """A schema that msgspec wrote."""

    def __init__(self, written: dict[str, Any]) -> None:
        super().__init__()
        self._written = written

    def to_schema(self) -> dict[str, Any]:
        return self._written


def documents(
    body: Body[Any] | None,
    answer: Any,
    *problems: int,
    query: type[msgspec.Struct] | None = None,
    status: int = 200,
    media_type: str = JSON,
) -> dict[str, Any]:
    """Arguments of a route decorator: what it takes, what it returns, how it refuses."""
    responses = {status: ResponseSpec(data_container=answer, media_type=media_type, description="")} | {
        code: ResponseSpec(data_container=Problem, media_type="application/problem+json", description="refused")
        for code in problems
    }
    return {"responses": responses, "operation_class": _operation(body, query)}


def add_request_schemas(app: Litestar) -> None:
    """Litestar collects only the schemas of what it decodes itself; these are the rest."""
    _, components = msgspec.json.schema_components(REQUESTS, ref_template=_REFERENCE)
    schemas = app.openapi_schema.components.schemas
    schemas.update((name, _StructSchema(written)) for name, written in components.items())


def _operation(body: Body[Any] | None, query: type[msgspec.Struct] | None) -> type[Operation]:
    """An operation that also has the body and the query parameters which Litestar does not see."""
    request_body = None
    if body is not None:
        schema = Reference(ref=_REFERENCE.format(name=body.kind.__name__))
        media_types = (JSON, MSGPACK[0])
        request_body = RequestBody(
            content={media_type: OpenAPIMediaType(schema=schema) for media_type in media_types},
            required=not body.optional,
        )
    properties = {} if query is None else msgspec.json.schema(query)["$defs"][query.__name__]["properties"]
    parameters = [
        Parameter(name=name, param_in="query", required=False, schema=_StructSchema(written))
        for name, written in properties.items()
    ]

    @dataclass
    class Documented(Operation):
        def __post_init__(self) -> None:
            self.request_body = request_body
            self.parameters = [*(self.parameters or []), *parameters] or None

    return Documented
