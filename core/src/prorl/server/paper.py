"""The paper's API, by its own names."""

from __future__ import annotations

import asyncio

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler

from prorl.pipeline.errors import UnknownJob
from prorl.pipeline.pipeline import JobHandle, Pipeline
from prorl.server.codec import AnyRequest, Body, reply, reply_json
from prorl.server.openapi import documents
from prorl.server.problems import BadRequest
from prorl.server.service import Service
from prorl.wire.backends import BackendSpec, BackendStatus, ClearRequest, PoolStatus
from prorl.wire.jobs import CLIENT_GONE, CancelRequest, JobRequest, StopRequest
from prorl.wire.results import RolloutResult
from prorl.wire.service import CancelReply, ServiceStatus, Switched

TAG = ["rollouts"]
POOL_TAG = ["LLM servers"]
SERVICE_TAG = ["service"]
DISCONNECTED = "http.disconnect"


def paper_routes(service: Service) -> list[HTTPRouteHandler]:
    pipeline, pool = service.pipeline, service.pool
    job_body = Body(JobRequest)
    cancel_body = Body(CancelRequest)
    stop_body = Body(StopRequest, default=StopRequest())
    add_body = Body(BackendSpec)
    clear_body = Body(ClearRequest, default=ClearRequest())

    @post("/process", status_code=200, tags=TAG, **documents(job_body, RolloutResult, 400, 404, 409, 413, 415, 503))
    async def process(request: AnyRequest) -> Response[bytes]:
        """Run one rollout and wait for its end. 200 with a result whatever happened to the rollout."""
        job = await job_body.read(request)
        handle = pipeline.submit(job)
        if job.cancel_on_disconnect:
            return reply_json(request, await _result_or_cancel(request, handle, pipeline), RolloutResult)
        return reply_json(request, await handle.result_json(), RolloutResult)

    @post("/cancel", status_code=200, tags=TAG, **documents(cancel_body, CancelReply, 400, 404))
    async def cancel(request: AnyRequest) -> Response[bytes]:
        """Cancel one job, several, a group, or everything. Jobs that have ended are left alone."""
        asked = await cancel_body.read(request)
        job_ids = (*asked.job_ids, *((asked.job_id,) if asked.job_id is not None else ()))
        if not job_ids and asked.group_id is None and not asked.all:
            raise BadRequest("name what to cancel: job_id, job_ids, group_id, or all = true")
        cancelled = pipeline.cancel(job_ids=job_ids, group_id=asked.group_id, everything=asked.all)
        if job_ids and len(cancelled.unknown) == len(set(job_ids)) and asked.group_id is None and not asked.all:
            raise UnknownJob(", ".join(cancelled.unknown))
        return reply(request, cancelled)

    @post("/add_llm_server", status_code=200, tags=POOL_TAG, **documents(add_body, BackendStatus, 400, 415, 502))
    async def add_llm_server(request: AnyRequest) -> Response[bytes]:
        """Register an LLM server, or register it anew. 502 when nothing answers at its URL."""
        return reply(request, await pool.add(await add_body.read(request)))

    @post("/clear_llm_server", status_code=200, tags=POOL_TAG, **documents(clear_body, PoolStatus, 400, 415))
    async def clear_llm_server(request: AnyRequest) -> Response[bytes]:
        """Remove LLM servers; without ``urls`` all of them, which begins a new policy version."""
        return reply(request, await pool.clear((await clear_body.read(request)).urls))

    @post("/start", status_code=200, tags=SERVICE_TAG, **documents(None, Switched))
    async def start(request: AnyRequest) -> Response[bytes]:
        """Accept jobs."""
        return reply(request, _switched(pipeline, pipeline.start()))

    @post("/stop", status_code=200, tags=SERVICE_TAG, **documents(stop_body, Switched, 400, 415))
    async def stop(request: AnyRequest) -> Response[bytes]:
        """Accept no more jobs. Those there are finish (``drain``) or end as cancelled; all have results afterwards."""
        asked = await stop_body.read(request)
        changed = await pipeline.stop(drain=asked.drain, timeout_s=asked.timeout_s)
        return reply(request, _switched(pipeline, changed))

    @get("/status", tags=SERVICE_TAG, **documents(None, ServiceStatus))
    async def status(request: AnyRequest) -> Response[bytes]:
        """What is going on: jobs, stages, LLM servers."""
        return reply(request, pipeline.status())

    return [process, cancel, add_llm_server, clear_llm_server, start, stop, status]


def _switched(pipeline: Pipeline, changed: bool) -> Switched:
    status = pipeline.status()
    return Switched(changed=changed, **{name: getattr(status, name) for name in ServiceStatus.__struct_fields__})


async def _result_or_cancel(request: AnyRequest, handle: JobHandle, pipeline: Pipeline) -> bytes:
    """The result; when the client goes away first, the job is cancelled."""
    ended = asyncio.create_task(handle.result_json())
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({ended, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            pipeline.cancel(job_ids=[handle.id], reason="the client went away", code=CLIENT_GONE)
        return await ended
    finally:
        gone.cancel()
        ended.cancel()


async def _disconnected(request: AnyRequest) -> None:
    while (await request.receive())["type"] != DISCONNECTED:
        pass
