"""The server as a process (:func:`run`), or as part of one (:class:`RunningServer`).

On SIGTERM or SIGINT running jobs end as cancelled and their results still go out to whoever waits; then connections
close, sandboxes end, and the process exits 0. A second signal does not wait, unless it comes at once: `timeout` and
process supervisors send one to the process and one to its group, and mean the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Self

import uvicorn
from litestar import Litestar

from prorl.api.errors import ConfigError
from prorl.plugins.registry import Registry
from prorl.server.app import create_app
from prorl.server.heads import BoundedHead
from prorl.server.service import Service
from prorl.server.settings import Settings

BACKLOG = 8192  # thousands of rollouts may be sent at once
SAME_SIGNAL_S = 1.0


class _Server(uvicorn.Server):
    """uvicorn waits for open requests before the application may shut down: ours wait for jobs, so jobs go first."""

    def __init__(self, config: uvicorn.Config, app: Litestar, on_listening: Callable[[], None]) -> None:
        super().__init__(config)
        self.app = app
        self.service: Service = app.state.service
        self._on_listening = on_listening
        self._asked_at: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._on_listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._end_jobs()
        await super().shutdown(sockets=sockets)
        if self.force_exit:  # the application is then cancelled, which uvicorn would log as its failure
            logging.getLogger("uvicorn.error").addFilter(_not_cancelled)

    async def _end_jobs(self) -> None:
        ending = asyncio.create_task(self.service.pipeline.stop())
        deadline = time.monotonic() + self.service.settings.server.shutdown_s
        while not ending.done() and not self.force_exit and time.monotonic() < deadline:
            await asyncio.wait({ending}, timeout=0.1)
        if ending.done():
            ending.result()
        else:
            ending.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but an orderly end is exit status 0: the signal is not raised again."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at = now
        elif now - self._asked_at > SAME_SIGNAL_S:
            self.force_exit = True
        self.should_exit = True


def _not_cancelled(record: logging.LogRecord) -> bool:
    return not (record.exc_info and record.exc_info[0] is asyncio.CancelledError)


def run(settings: Settings, registry: Registry, *, on_listening: Callable[[str], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT. ``on_listening`` gets the URL once requests are really answered.

    Raises ``ConfigError`` for an address that cannot be had, and for wrong settings.
    """

    def listening() -> None:
        calm_collector()
        (on_listening or _say)(url)

    server, bound, url = _prepare(settings, registry, listening)
    with bound:
        _check_started(server, lambda: server.run(sockets=[bound]))


def calm_collector() -> None:
    """For a process that is the server's own: thousands of jobs are no garbage, so look for cycles less often."""
    gc.collect()
    gc.freeze()  # what the start has made stays for good: no need to walk through it again and again
    gc.set_threshold(20_000, 20, 20)


def _say(url: str) -> None:
    sys.stdout.write(f"listening on {url}\n")
    sys.stdout.flush()


class RunningServer:
    """A server in a thread of this process, on a free port unless the settings name one.

    ::

        with RunningServer(Settings(), registry) as server:
            httpx.get(f"{server.url}/status")
    """

    def __init__(self, settings: Settings, registry: Registry, *, start_timeout_s: float = 60.0) -> None:
        self._settings = settings
        self._registry = registry
        self._timeout_s = start_timeout_s
        self._listening = threading.Event()
        self._failure: BaseException | None = None
        self.url = ""

    def __enter__(self) -> Self:
        self._server, self._bound, self.url = _prepare(self._settings, self._registry, self._listening.set)
        self._thread = threading.Thread(target=self._serve, name="prorl-server", daemon=True)
        self._thread.start()
        self._listening.wait(self._timeout_s)
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        if not self._server.started:
            self.__exit__(None, None, None)
            raise ConfigError(f"the server did not start within {self._timeout_s:g} s")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(self._settings.server.shutdown_s * 2)
        self._bound.close()

    @property
    def app(self) -> Litestar:
        return self._server.app

    @property
    def service(self) -> Service:
        """The parts of the running server. Its event loop is another thread's: only look."""
        return self._server.service

    def _serve(self) -> None:
        try:
            _check_started(self._server, lambda: self._server.run(sockets=[self._bound]))
        except BaseException as error:
            self._failure = error
        finally:
            self._listening.set()


def _prepare(
    settings: Settings, registry: Registry, on_listening: Callable[[], None]
) -> tuple[_Server, socket.socket, str]:
    app = create_app(settings, registry)
    bound, url = _bind(settings.server.host, settings.server.port)
    service: Service = app.state.service
    service.doors.url = settings.server.url or url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    config = uvicorn.Config(
        app,
        http=BoundedHead,
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,  # nothing here looks at the client's address
        backlog=BACKLOG,
        timeout_keep_alive=settings.server.keep_alive_s,
        timeout_graceful_shutdown=max(1, round(settings.server.shutdown_s)),
    )
    return _Server(config, app, on_listening), bound, url


def _check_started(server: _Server, serve: Callable[[], None]) -> None:
    """uvicorn exits the process when the application's startup fails, having logged why; that is not for us to do."""
    try:
        serve()
    except SystemExit as error:
        if not server.started:
            raise ConfigError("the server could not start: see its log") from error


def _bind(host: str, port: int) -> tuple[socket.socket, str]:
    """A socket that listens to nobody yet, and its URL: the port is ours from here on."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _no_host(host, error) from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise _no_host(host, error) from error
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}; take another --port ([server] port; 0: a free one)"
        ) from error
    name = f"[{host}]" if ":" in host else host
    return bound, f"http://{name}:{bound.getsockname()[1]}"


def _no_host(host: str, error: OSError) -> ConfigError:
    return ConfigError(f"--host ([server] host) {host!r} is no address of this machine: {error.strerror}")
