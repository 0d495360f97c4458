"""What the server is: alive, and with which plugins."""

from __future__ import annotations

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

from prorl.pipeline.pipeline import VERSION
from prorl.server.codec import AnyRequest, reply
from prorl.server.openapi import documents
from prorl.server.service import Service
from prorl.wire.service import Health, PluginReport

TAG = ["service"]


def info_routes(service: Service) -> list[HTTPRouteHandler]:
    @get("/health", tags=TAG, **documents(None, Health))
    async def health(request: AnyRequest) -> Response[bytes]:
        """The process is alive and its event loop runs."""
        return reply(request, Health(status="ok", version=VERSION))

    @get("/plugins", tags=TAG, **documents(None, list[PluginReport]))
    async def plugins(request: AnyRequest) -> Response[bytes]:
        """Every plugin found at startup: whether it works, why not, and what it offers."""
        return reply(request, service.registry.reports)

    return [health, plugins]
