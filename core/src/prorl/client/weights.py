"""New weights into vLLM servers between two training steps, by way of a folder that both sides see.

::

    hold      rollout servers let go of the engines: what runs waits with its next turn; engines pause
    load      engines read the folder's weights, and forget what the old ones computed
    release   engines name the new weights and go on; rollout servers take them again, under that name

vLLM has to run with ``VLLM_SERVER_DEV_MODE=1``, which asks for no password: keep it on loopback or a private network.
Trainers that stream weights into their engines by themselves do not need this.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import msgspec

from prorl.client.blocking import BlockingClient
from prorl.client.errors import ClientError
from prorl.wire.backends import BackendSpec


class WeightsRefused(ClientError):  # noqa: N818 - says what happened
    """An engine did not do its part of an update; it stays paused, and no rollout server knows it."""

    def __init__(self, url: str, doing: str, why: str) -> None:
        super().__init__(f"{url} could not {doing}: {why}")
        self.url = url


class FolderReload:
    """``engines`` as they are registered with each of the rollout ``servers`` (URLs); their ``policy_version`` is
    ignored. ``timeout_s`` bounds one call to an engine. Every method raises :class:`WeightsRefused`, or what
    :class:`BlockingClient` raises."""

    def __init__(self, engines: Sequence[BackendSpec], servers: Sequence[str], *, timeout_s: float = 600.0) -> None:
        self._engines = list(engines)
        self._servers = [BlockingClient(url) for url in servers]
        self._http = httpx.Client(timeout=timeout_s, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Twice does no harm: a trainer closes what it was given."""
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        self._http.close()

    def publish(self, folder: Path, policy_version: str) -> None:
        """All three. On return whatever is sampled is sampled from these weights, and says so."""
        self.hold()
        self.load(folder)
        self.release(policy_version)

    def hold(self) -> None:
        for server in self._servers:
            known = {backend.url.rstrip("/") for backend in server.status().pool.backends}
            # Before the first update there is nothing to clear, and to clear without a url clears everybody's.
            if ours := [engine.url for engine in self._engines if engine.url.rstrip("/") in known]:
                server.clear_llm_server(*ours)
        # A reply that is half sampled goes on afterwards, with both versions in it.
        self._tell("pause", "/pause", params={"mode": "keep"})

    def load(self, folder: Path) -> None:
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder.absolute())}}
        self._tell("load the weights", "/collective_rpc", json=body)
        self._tell("forget its prefixes", "/reset_prefix_cache")

    def release(self, policy_version: str) -> None:
        self._tell("name its weights", "/update_weight_version", json={"new_version": policy_version})
        self._tell("resume", "/resume")
        for server in self._servers:
            for engine in self._engines:
                server.add_llm_server(msgspec.structs.replace(engine, policy_version=policy_version))

    def _tell(self, doing: str, path: str, **body: Any) -> None:
        for engine in self._engines:
            try:
                answer = self._http.post(f"{engine.url.rstrip('/')}{path}", **body)
            except httpx.TransportError as error:
                raise WeightsRefused(engine.url, doing, str(error) or type(error).__name__) from error
            if answer.is_error:
                hint = " (is VLLM_SERVER_DEV_MODE=1 set?)" if answer.status_code == httpx.codes.NOT_FOUND else ""
                raise WeightsRefused(engine.url, doing, f"{answer.status_code} {answer.text[:300]}{hint}")
