"""How the server says no: ``application/problem+json`` (RFC 9457) for everything, also for what Litestar refuses.

``detail`` says what to do; ``extra`` holds the same facts for programs; ``type`` is ``urn:prorl:problem:<slug>``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.types import ExceptionHandlersMap

from prorl.api.errors import ConfigError, Fault, ProrlError
from prorl.pipeline.errors import HandlerBroken, JobConflict, NoBackend, NotAccepting, UnknownJob
from prorl.plugins.errors import HandlerUnavailable, UnknownDomain
from prorl.wire.service import Problem

log = logging.getLogger("prorl.server")
MEDIA_TYPE = "application/problem+json"
RETRY_S = 5
AnyRequest = Request[Any, Any, State]


class BadRequest(ProrlError):  # noqa: N818 - named as HTTP names it
    """``path`` is the place in the body (``$.sampling_params.top_p``), ``reason`` what is wrong there."""

    def __init__(self, message: str, *, path: str | None = None, reason: str | None = None) -> None:
        super().__init__(message)
        self.extra = {"path": path, "reason": reason} if path is not None else {}


class UnsupportedMediaType(ProrlError):  # noqa: N818
    def __init__(self, given: str) -> None:
        super().__init__(f"Content-Type {given!r} is not spoken here: send application/json or application/msgpack")


def exception_handlers() -> ExceptionHandlersMap:
    return {
        BadRequest: _bad_request,
        UnsupportedMediaType: _simple(415, "unsupported-media-type"),
        ConfigError: _simple(400, "bad-settings"),
        UnknownDomain: _unknown_domain,
        UnknownJob: _simple(404, "unknown-job"),
        JobConflict: _conflict,
        HandlerUnavailable: _handler_unavailable,
        HandlerBroken: _simple(503, "handler-broken"),
        NotAccepting: _not_accepting,
        NoBackend: _no_backend,
        Fault: _simple(502, "backend-fault"),
        HTTPException: _http,
        Exception: _bug,
    }


def problem(
    request: AnyRequest,
    status: int,
    slug: str | None,
    detail: str,
    *,
    extra: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
) -> Response[bytes]:
    body = Problem(
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail.encode("utf-8", "replace").decode(),
        kind=f"urn:prorl:problem:{slug}" if slug is not None else "about:blank",
        instance=request.scope.get("path"),
        extra=extra or {},
    )
    return Response(msgspec.json.encode(body), media_type=MEDIA_TYPE, status_code=status, headers=headers)


def _simple(status: int, slug: str) -> Callable[[AnyRequest, Exception], Response[bytes]]:
    def handle(request: AnyRequest, error: Exception) -> Response[bytes]:
        return problem(request, status, slug, str(error))

    return handle


def _bad_request(request: AnyRequest, error: BadRequest) -> Response[bytes]:
    return problem(request, 400, "bad-request", str(error), extra=error.extra)


def _unknown_domain(request: AnyRequest, error: UnknownDomain) -> Response[bytes]:
    extra = {"domain": error.domain, "known": list(error.known)}
    # Naming none is a bad request; naming one that nobody serves is a thing not found.
    status = 400 if error.domain is None else 404
    return problem(request, status, "unknown-domain", str(error), extra=extra)


def _handler_unavailable(request: AnyRequest, error: HandlerUnavailable) -> Response[bytes]:
    extra = {"domain": error.domain, "plugins": [msgspec.to_builtins(report) for report in error.reports]}
    return problem(request, 503, "plugin-failed", str(error), extra=extra)


def _conflict(request: AnyRequest, error: JobConflict) -> Response[bytes]:
    return problem(request, 409, "job-conflict", str(error), extra={"job_id": error.job_id, "digest": error.digest})


def _not_accepting(request: AnyRequest, error: NotAccepting) -> Response[bytes]:
    retry = error.retry_s if error.retry_s is not None else RETRY_S
    return problem(request, 503, "not-accepting", str(error), headers={"retry-after": str(retry)})


def _no_backend(request: AnyRequest, error: NoBackend) -> Response[bytes]:
    return problem(request, 503, "no-backend", str(error), headers={"retry-after": str(RETRY_S)})


def _http(request: AnyRequest, error: HTTPException) -> Response[bytes]:
    """What Litestar itself refuses: no route, wrong method, too large a body, a bad parameter."""
    detail = error.detail or HTTPStatus(error.status_code).phrase
    if error.status_code == HTTPStatus.NOT_FOUND:
        detail = f"nothing at {request.scope.get('path')}: see /schema"
    elif error.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        detail = "the body is larger than [server] body_limit_mb allows"
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        detail = f"{request.scope.get('method')} is not for {request.scope.get('path')}: see /schema"
    extra = {"errors": error.extra} if isinstance(error.extra, list | dict) and error.extra else {}
    return problem(request, error.status_code, None, detail, extra=extra, headers=dict(error.headers or {}))


def _bug(request: AnyRequest, error: Exception) -> Response[bytes]:
    log.error("%s %s failed", request.scope.get("method"), request.scope.get("path"), exc_info=error)
    return problem(request, 500, "internal", f"an error of the server ({type(error).__name__}); its log has the rest")
