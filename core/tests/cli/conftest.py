"""A real server on a free port, in this process or as a process of its own, with the ``play`` domain."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import httpx
import pytest

from prorl.plugins import discover
from prorl.server.serve import RunningServer
from prorl.server.settings import parse_settings

PLAY = Path(__file__).parent.parent / "data" / "plugins" / "play"


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """What a script starts in the background ignores SIGINT, and so does all that it starts: tests are no exception."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def play_environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(PLAY), "COLUMNS": "80"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningServer]:
    monkeypatch.syspath_prepend(str(PLAY))
    found = [metadata.distribution("prorl"), *metadata.distributions(path=[str(PLAY)])]
    settings = parse_settings({"server": {"port": 0, "name": "tested"}})
    with RunningServer(settings, discover(distributions=found)) as running:
        yield running


class ServerProcess:
    """``prorl serve`` as people start it. ``kill`` is SIGKILL; ``start`` again takes the same port."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.url = ""
        self._folder = folder
        self._environment = environment
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "prorl", "serve", "--port", self.url.rpartition(":")[2] or "0"],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().partition(" listens on ")[2].split()[0]

    def kill(self, how: int = signal.SIGKILL) -> int:
        assert self.process is not None
        self.process.send_signal(how)
        status = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None
        return status

    def jobs(self) -> dict[str, int]:
        jobs: dict[str, int] = httpx.get(f"{self.url}/status").json()["jobs"]
        return jobs


@pytest.fixture
def server_process(tmp_path: Path, play_environment: dict[str, str]) -> Iterator[ServerProcess]:
    made = ServerProcess(tmp_path, play_environment)
    yield made
    if made.process is not None:
        made.kill()


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, "it never came to be"
            time.sleep(0.02)

    return wait
