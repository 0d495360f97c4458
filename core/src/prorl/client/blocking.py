"""The same client for code without an event loop. One call at a time; for many rollouts use :class:`RolloutClient`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from prorl.client.client import DEFAULT_URL, RolloutClient
from prorl.wire.backends import BackendSpec, BackendStatus, PoolStatus
from prorl.wire.jobs import JobRequest
from prorl.wire.results import JobEvent, JobView, RolloutResult
from prorl.wire.service import CancelReply, ServiceStatus, Switched

T = TypeVar("T")


class BlockingClient:
    """``with BlockingClient(url) as server: ...``. Options and errors are those of :class:`RolloutClient`; in a thread
    whose event loop is running it raises ``RuntimeError``."""

    def __init__(self, url: str = DEFAULT_URL, **options: Any) -> None:
        if _loop_is_running():  # a notebook's, say
            raise RuntimeError("an event loop is running here: use RolloutClient and await it, or another thread")
        self._runner = asyncio.Runner()
        self._client = RolloutClient(url, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._run(self._client.close())
        self._runner.close()

    def process(self, request: JobRequest) -> RolloutResult:
        return self._run(self._client.process(request))

    def process_all(self, requests: Iterable[JobRequest]) -> list[RolloutResult]:
        """Many rollouts at once; results in the order of the requests."""

        async def gather() -> list[RolloutResult]:
            return await asyncio.gather(*(self._client.process(request) for request in requests))

        return self._run(gather())

    def submit(self, request: JobRequest) -> JobView:
        return self._run(self._client.submit(request))

    def wait(self, job_id: str, *, timeout_s: float | None = None) -> RolloutResult:
        return self._run(self._client.wait(job_id, timeout_s=timeout_s))

    def job(self, job_id: str) -> JobView:
        return self._run(self._client.job(job_id))

    def events(self, job_id: str, *, after: int = 0) -> Iterator[JobEvent]:
        """What happens to a job, until it has ended."""
        events = self._client.events(job_id, after=after)
        try:
            while True:
                yield self._run(anext(events))
        except StopAsyncIteration:
            return
        finally:
            self._run(events.aclose())

    def cancel(
        self,
        job_id: str | None = None,
        *,
        job_ids: tuple[str, ...] = (),
        group_id: str | None = None,
        all: bool = False,
    ) -> CancelReply:
        return self._run(self._client.cancel(job_id, job_ids=job_ids, group_id=group_id, all=all))

    def start(self) -> Switched:
        return self._run(self._client.start())

    def stop(self, *, drain: bool = False, timeout_s: float = 60.0) -> Switched:
        return self._run(self._client.stop(drain=drain, timeout_s=timeout_s))

    def add_llm_server(self, backend: BackendSpec | str) -> BackendStatus:
        return self._run(self._client.add_llm_server(backend))

    def clear_llm_server(self, *urls: str) -> PoolStatus:
        return self._run(self._client.clear_llm_server(*urls))

    def status(self) -> ServiceStatus:
        return self._run(self._client.status())

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(call)


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
