"""``RolloutClient``: the server's API as methods, with the patience a trainer needs.

Every request carries a ``job_id`` (the caller's, or one made here), and the server attaches a repeated id to the job it
already has. So whatever breaks in between (a connection, a proxy, the server itself), sending again is harmless, and
that is all the recovery there is.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Self

import httpx
import msgspec

from prorl.client.errors import ServerUnreachable, ServiceError
from prorl.client.events import read_events
from prorl.client.link import Link, Patience
from prorl.wire.backends import BackendSpec, BackendStatus, ClearRequest, PoolStatus
from prorl.wire.jobs import RUN_ANEW, CancelRequest, JobRequest, StopRequest
from prorl.wire.results import JobEvent, JobView, RolloutResult
from prorl.wire.service import CancelReply, Health, PluginReport, ServiceStatus, Switched

DEFAULT_URL = "http://127.0.0.1:8089"


class RolloutClient:
    """One rollout server. Use as ``async with``, or call :meth:`close`.

    ``concurrency``: rollouts in flight at once; more wait here. ``timeout_s``: limit on a short call. ``heartbeat_s``:
    a rollout's long call is checked and renewed after this many silent seconds. ``give_up_s``: how long to keep trying
    without contact before :class:`~prorl.client.errors.ServerUnreachable`; the logger ``prorl.client`` says when that
    waiting begins and ends. Short calls that tell something (``status``, ``plugins``, ``health``) are tried once.

    Raises :class:`~prorl.client.errors.BadAddress` for a ``url`` that is none.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        concurrency: int = 256,
        timeout_s: float = 30.0,
        heartbeat_s: float = 60.0,
        give_up_s: float = 120.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._link = Link(url, concurrency=concurrency, timeout_s=timeout_s, transport=transport)
        self._heartbeat_s = heartbeat_s
        self._give_up_s = give_up_s
        self._submitted: dict[str, JobRequest] = {}

    @property
    def url(self) -> str:
        return self._link.url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._link.http.aclose()

    # -- rollouts

    async def process(self, request: JobRequest) -> RolloutResult:
        """Run one rollout to its end. Raises ``ServiceError`` (a bad request) or ``ServerUnreachable``.

        A rollout that ended because the server was stopped, or because a connection broke under a job that asked for
        ``cancel_on_disconnect``, is sent again, for ``give_up_s``, to whoever answers there.
        """
        named = _named(request)
        async with self._link.slots:
            patience = Patience(self._link, self._give_up_s)
            while True:
                try:
                    result = await self._link.call(
                        "POST", "/process", RolloutResult, body=named, read_s=self._silence_s(named)
                    )
                    if not was_dropped(result) or not await patience.allows():
                        return result
                except httpx.ReadTimeout as error:
                    if not await self._alive():
                        await patience.spend(error)
                    else:
                        patience.renew()
                except httpx.TransportError as error:
                    await patience.spend(error)
                except ServiceError as error:
                    if error.retry_after_s is None:
                        raise
                    await patience.spend(error)

    async def submit(self, request: JobRequest) -> JobView:
        """Hand in a job and return at once; :meth:`wait` gets its result. The request is kept until then."""
        named = _named(request)
        view = await self._link.insist("POST", "/jobs", JobView, body=named, give_up_s=self._give_up_s)
        self._submitted[view.job_id] = named
        return view

    async def wait(self, job_id: str, *, timeout_s: float | None = None) -> RolloutResult:
        """The result of a job. One submitted here is submitted again if the server has lost it (a restart).

        Raises ``TimeoutError`` after ``timeout_s`` (the job goes on), ``ServiceError`` (404) for an unknown job.
        """
        async with asyncio.timeout(timeout_s):
            pause_s = 0.05
            while True:
                view = await self._view_or_resubmit(job_id)
                if view.result is not None:
                    self._submitted.pop(job_id, None)
                    return view.result
                await asyncio.sleep(pause_s)
                pause_s = min(1.0, pause_s * 1.5)

    async def job(self, job_id: str) -> JobView:
        return await self._link.insist("GET", f"/jobs/{job_id}", JobView, give_up_s=self._give_up_s)

    async def events(self, job_id: str, *, after: int = 0) -> AsyncGenerator[JobEvent, None]:
        """What happens to a job, from event ``after + 1`` until it has ended; reconnects where it broke off."""
        patience = Patience(self._link, self._give_up_s)
        while True:
            headers = {"accept": "text/event-stream", "last-event-id": str(after)}
            try:
                async with self._link.http.stream(
                    "GET",
                    f"/jobs/{job_id}/events",
                    headers=headers,
                    timeout=httpx.Timeout(self._heartbeat_s),
                ) as response:
                    self._link.found()
                    if response.is_error:
                        raise self._link.refusal(response.status_code, await response.aread(), response.headers)
                    patience.renew()
                    async for event in read_events(response.aiter_lines()):
                        if event.seq > after:
                            after = event.seq
                            yield event
                    return
            except httpx.TransportError as error:
                await patience.spend(error)

    async def cancel(
        self,
        job_id: str | None = None,
        *,
        job_ids: tuple[str, ...] = (),
        group_id: str | None = None,
        all: bool = False,
    ) -> CancelReply:
        """Cancel one job, several, a group, or everything. Raises ``ServiceError`` (404) if no id is known."""
        body = CancelRequest(job_id=job_id, job_ids=job_ids, group_id=group_id, all=all)
        return await self._link.insist("POST", "/cancel", CancelReply, body=body, give_up_s=self._give_up_s)

    # -- LLM servers

    async def add_llm_server(self, backend: BackendSpec | str) -> BackendStatus:
        """Register an LLM server (a URL, or a spec with dialect, model, version ...)."""
        body = BackendSpec(url=backend) if isinstance(backend, str) else backend
        return await self._link.insist("POST", "/add_llm_server", BackendStatus, body=body, give_up_s=self._give_up_s)

    async def clear_llm_server(self, *urls: str) -> PoolStatus:
        """Remove LLM servers; without ``urls`` all of them, which begins a new policy version. Tried once."""
        return await self._link.once("POST", "/clear_llm_server", PoolStatus, body=ClearRequest(urls=urls))

    # -- the server

    async def start(self) -> Switched:
        """Accept jobs (again)."""
        return await self._link.insist("POST", "/start", Switched, give_up_s=self._give_up_s)

    async def stop(self, *, drain: bool = False, timeout_s: float = 60.0) -> Switched:
        """Take no more jobs. ``drain`` waits up to ``timeout_s`` for those accepted; otherwise they are cancelled."""
        body = StopRequest(drain=drain, timeout_s=timeout_s)
        return await self._link.once("POST", "/stop", Switched, body=body, read_s=timeout_s + self._heartbeat_s)

    async def status(self) -> ServiceStatus:
        return await self._link.once("GET", "/status", ServiceStatus)

    async def plugins(self) -> list[PluginReport]:
        return await self._link.once("GET", "/plugins", list[PluginReport])

    async def health(self) -> Health:
        return await self._link.once("GET", "/health", Health)

    async def _alive(self) -> bool:
        try:
            await self.health()
        except ServerUnreachable:
            return False
        return True

    def _silence_s(self, request: JobRequest) -> float | None:
        # Hanging up to renew the call would cancel such a job: leave it to the TCP keep-alive to notice a dead host.
        return 7 * 86_400.0 if request.cancel_on_disconnect else self._heartbeat_s

    async def _view_or_resubmit(self, job_id: str) -> JobView:
        try:
            return await self.job(job_id)
        except ServiceError as error:
            request = self._submitted.get(job_id)
            if error.status != 404 or request is None:
                raise
            return await self.submit(request)


def was_dropped(result: RolloutResult) -> bool:
    """Whether nobody gave the rollout up: its server was stopped, or a connection broke."""
    return result.error is not None and result.error.code in RUN_ANEW


def _named(request: JobRequest) -> JobRequest:
    if request.job_id is not None:
        return request
    return msgspec.structs.replace(request, job_id=f"job-{uuid.uuid4().hex}")
