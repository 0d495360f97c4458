"""The Litestar application: routes over one :class:`Service`, which lives as long as the application does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from litestar import Litestar, asgi
from litestar.openapi import OpenAPIConfig

from prorl.pipeline.pipeline import VERSION
from prorl.plugins.registry import Registry
from prorl.server.info import info_routes
from prorl.server.jobs import job_routes
from prorl.server.openapi import add_request_schemas
from prorl.server.paper import paper_routes
from prorl.server.problems import exception_handlers
from prorl.server.proxy import Proxy
from prorl.server.schema_page import schema_pages
from prorl.server.service import Service
from prorl.server.settings import Settings


def create_app(settings: Settings, registry: Registry) -> Litestar:
    """The application, with its :class:`Service` as ``app.state.service``.

    Raises ``ConfigError`` for settings that some handler or plugin does not have.
    """
    service = Service(settings, registry)

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        async with service.running():
            yield

    body_limit = int(settings.server.body_limit_mb * 2**20)
    proxy = Proxy(service.doors, body_limit=body_limit, quiet_s=settings.server.sse_keep_alive_s)

    app = Litestar(
        route_handlers=[
            *paper_routes(service),
            *job_routes(service),
            *info_routes(service),
            asgi("/proxy", is_mount=True, copy_scope=True)(proxy.__call__),
        ],
        lifespan=[lifespan],
        exception_handlers=exception_handlers(),
        openapi_config=OpenAPIConfig(
            title="ProRL Agent", version=VERSION, path="/schema", render_plugins=schema_pages()
        ),
        request_max_body_size=body_limit,
        logging_config=None,  # the default one would log bodies, and configure logging that is not ours
        debug=False,
    )
    app.state.service = service
    add_request_schemas(app)
    return app
