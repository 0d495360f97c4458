"""OpenAPI that tells the truth although the routes read raw bodies: the schemas come from the same Structs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from litestar import Litestar
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import OpenAPIMediaType, Operation, Reference, RequestBody, Schema

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
    body: Body[Any] | None, answer: Any, *problems: int, status: int = 200, media_type: str = JSON
) -> dict[str, Any]:
    """Arguments of a route decorator: what it takes, what it returns, how it refuses."""
    responses = {status: ResponseSpec(data_container=answer, media_type=media_type, description="")} | {
        code: ResponseSpec(data_container=Problem, media_type="application/problem+json", description="refused")
        for code in problems
    }
    return {"responses": responses} | ({"operation_class": _operation_with(body)} if body is not None else {})


def add_request_schemas(app: Litestar) -> None:
    """Litestar collects only the schemas of what it decodes itself; these are the rest."""
    _, components = msgspec.json.schema_components(REQUESTS, ref_template=_REFERENCE)
    schemas = app.openapi_schema.components.schemas
    schemas.update((name, _StructSchema(written)) for name, written in components.items())


def _operation_with(body: Body[Any]) -> type[Operation]:
    schema = Reference(ref=_REFERENCE.format(name=body.kind.__name__))
    request_body = RequestBody(
        content={media_type: OpenAPIMediaType(schema=schema) for media_type in (JSON, MSGPACK[0])},
        required=not body.optional,
    )

    @dataclass
    class WithBody(Operation):
        def __post_init__(self) -> None:
            self.request_body = request_body

    return WithBody
