"""The same jobs without a connection held for as long as a rollout takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.response import Stream

from prorl.server.codec import AnyRequest, Body, read_query, reply
from prorl.server.openapi import documents
from prorl.server.problems import BadRequest
from prorl.server.service import Service
from prorl.wire.jobs import JobRequest
from prorl.wire.results import JobEvent, JobState, JobView

TAG = ["jobs"]
EVENT_STREAM = "text/event-stream"


class JobsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``GET /jobs?state=running&limit=10``."""

    state: Annotated[JobState | None, msgspec.Meta(description="only jobs in this state")] = None
    group_id: Annotated[str | None, msgspec.Meta(description="only jobs of this group")] = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000, description="at most so many")] = 100


def job_routes(service: Service) -> list[HTTPRouteHandler]:
    pipeline, quiet_s = service.pipeline, service.settings.server.sse_keep_alive_s
    job_body = Body(JobRequest)

    @post("/jobs", status_code=202, tags=TAG, **documents(job_body, JobView, 400, 404, 409, 413, 415, 503, status=202))
    async def submit(request: AnyRequest) -> Response[bytes]:
        """Accept a rollout and return at once; ``Location`` is where its result will be."""
        handle = pipeline.submit(await job_body.read(request))
        return reply(request, handle.view(), status=202, headers={"location": f"/jobs/{handle.id}"})

    @get("/jobs", tags=TAG, **documents(None, list[JobView], 400, query=JobsQuery))
    async def jobs(request: AnyRequest) -> Response[bytes]:
        """Jobs without their results: those that have not ended first, then the latest ended."""
        asked = read_query(request, JobsQuery)
        return reply(request, pipeline.jobs(state=asked.state, group_id=asked.group_id, limit=asked.limit))

    @get("/jobs/{job_id:str}", tags=TAG, **documents(None, JobView, 404))
    async def job(request: AnyRequest) -> Response[bytes]:
        """One job, with its result once it has ended."""
        return reply(request, pipeline.job(request.path_params["job_id"]))

    @get(
        "/jobs/{job_id:str}/events",
        tags=TAG,
        media_type=EVENT_STREAM,
        **documents(None, JobEvent, 400, 404, media_type=EVENT_STREAM),
    )
    async def events(request: AnyRequest) -> Stream:
        """Server-sent events from the beginning (or after ``Last-Event-ID``) until the job has ended.

        ``id`` is the event's ``seq``, ``event`` its kind, ``data`` a ``JobEvent``. A gap in ``seq`` means that the
        reader was slower than the log is long.
        """
        stream = pipeline.watch(request.path_params["job_id"], after=_last_event_id(request))
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return Stream(_lines(stream, quiet_s), media_type=EVENT_STREAM, headers=headers)

    return [submit, jobs, job, events]


def _last_event_id(request: AnyRequest) -> int:
    given = request.headers.get("last-event-id", "0").strip() or "0"
    if not (given.isascii() and given.isdigit() and len(given) < 19):
        raise BadRequest(f"Last-Event-ID must be the number of an event, not {given[:50]!r}")
    return int(given)


async def _lines(events: AsyncIterator[JobEvent], quiet_s: float) -> AsyncIterator[bytes]:
    """Events as they come, and a comment when there is none for a while: proxies close silent connections."""
    waiting: asyncio.Task[JobEvent] | None = None
    try:
        while True:
            if waiting is None:
                waiting = asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait({waiting}, timeout=quiet_s)
            if not done:
                yield b": still here\n\n"
                continue
            try:
                event = waiting.result()
            except StopAsyncIteration:
                return
            finally:
                waiting = None
            yield b"id: %d\nevent: %s\ndata: %s\n\n" % (
                event.seq,
                event.kind.replace("\n", " ").replace("\r", " ").encode("utf-8", "replace"),
                msgspec.json.encode(event),
            )
    finally:
        if waiting is not None:
            waiting.cancel()
