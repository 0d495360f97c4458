"""The same client for code without an event loop. One call at a time; for many rollouts use :class:`RolloutClient`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from prorl.client.client import DEFAULT_URL, RolloutClient
from prorl.wire.backends import BackendSpec, BackendStatus, PoolStatus
from prorl.wire.jobs import JobRequest
from prorl.wire.results import RolloutResult
from prorl.wire.service import ServiceStatus

T = TypeVar("T")


class BlockingClient:
    """``with BlockingClient(url) as server: ...``. Options and errors are those of :class:`RolloutClient`."""

    def __init__(self, url: str = DEFAULT_URL, **options: Any) -> None:
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

    def add_llm_server(self, backend: BackendSpec | str) -> BackendStatus:
        return self._run(self._client.add_llm_server(backend))

    def clear_llm_server(self, *urls: str) -> PoolStatus:
        return self._run(self._client.clear_llm_server(*urls))

    def status(self) -> ServiceStatus:
        return self._run(self._client.status())

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(call)
