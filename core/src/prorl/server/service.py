"""What the server owns while it lives: the LLM pool, the sandbox manager, the pipeline."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from prorl.api.errors import ConfigError, Fault
from prorl.capture import Doors
from prorl.llm.pool import BackendPool
from prorl.pipeline.pipeline import Pipeline
from prorl.plugins.registry import Registry
from prorl.sandbox.manager import SandboxManager
from prorl.sandbox.plugin import with_settings
from prorl.server.settings import Settings, check_settings
from prorl.server.sockets import Sockets, sweep
from prorl.wire.backends import BackendSpec
from prorl.wire.certificate import read_key
from prorl.wire.wording import counted

log = logging.getLogger("prorl.server")
RETRY_FIRST_S = 3.0
RETRY_LAST_S = 60.0
LOOK_S = 5.0


def _certificate_key(file: str | None) -> bytes | None:
    if file is None:
        return None
    try:
        return read_key(Path(file))
    except ValueError as error:
        raise ConfigError(f"[server] certificate_key_file: {error}") from error


class Service:
    """The parts, wired. Raises ``ConfigError`` for settings that some handler or plugin does not have."""

    def __init__(self, settings: Settings, registry: Registry) -> None:
        self.settings = check_settings(settings, registry)
        self.registry = registry
        self.pool = BackendPool(registry.dialects, settings.pool)
        self.sandboxes = SandboxManager(with_settings(registry.runtimes, settings.sandbox), settings.sandbox.runtime)
        self.doors = Doors()
        self.doors.listen = Sockets(
            self.doors,
            body_limit=int(settings.server.body_limit_mb * 2**20),
            quiet_s=settings.server.sse_keep_alive_s,
            keep_alive_s=settings.server.keep_alive_s,
        ).listen
        self.pipeline = Pipeline(
            registry,
            self.pool,
            self.sandboxes,
            settings.pipeline,
            doors=self.doors,
            tables=settings.handlers,
            plugin_tables=self.settings.plugins.values(),
            server=settings.server.name,
            certificate_key=_certificate_key(settings.server.certificate_key_file),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Everything up inside the block; everything ended after it, in the opposite order."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.sandboxes.close)
            await self._sweep()
            await self.pool.start()
            stack.push_async_callback(self.pool.close)
            await self.pipeline.open()
            stack.push_async_callback(self.pipeline.close)
            for spec in self.settings.backends:
                adding = asyncio.create_task(self._add_backend(spec), name=f"add {spec.url}")
                stack.callback(adding.cancel)
            looking = asyncio.create_task(self._tell_of_waiting(), name="look for jobs that wait")
            stack.callback(looking.cancel)
            if self.settings.server.accept_jobs:
                self.pipeline.start()
            yield

    async def _sweep(self) -> None:
        """What a killed server left behind. A runtime that cannot say is no reason not to start."""
        try:
            ended = await asyncio.to_thread(sweep) + await self.sandboxes.sweep()
        except Exception:
            log.exception("sandboxes that a killed server may have left behind were not looked for")
        else:
            if ended:
                log.info("%s of a killed server ended", counted(ended, "leftover"))

    async def _add_backend(self, spec: BackendSpec) -> None:
        """An LLM server of the settings that is not up yet is no reason not to start: it is asked until it is.

        ``ConfigError`` is what answers without being an engine: rarely one soon, so it is asked seldom.
        """
        pause_s, said = RETRY_FIRST_S, ""
        while True:
            try:
                await self.pool.add(spec)
            except (ConfigError, Fault) as error:
                if str(error) != said:
                    said = str(error)
                    log.warning(
                        "LLM server %s of the settings cannot be used yet, and is asked again: %s", spec.url, said
                    )
                pause_s = RETRY_LAST_S if isinstance(error, ConfigError) else pause_s
            else:
                log.info("LLM server %s of the settings was added", spec.url)
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_LAST_S)

    async def _tell_of_waiting(self) -> None:
        """Log once that jobs wait for an LLM server. Seen once it may be an update of the weights; twice it is not."""
        seen = said = None
        while True:
            await asyncio.sleep(LOOK_S)
            pool = self.pool.status()
            trouble = pool.trouble if pool.waiting else None
            if trouble is not None and trouble == seen and trouble != said:
                said = trouble
                log.warning("%s waiting: %s", counted(pool.waiting, "job"), trouble)
            elif trouble is None and said is not None:
                said = None
                log.info("no job waits for an LLM server any more")
            seen = trouble
