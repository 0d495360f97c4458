"""Memory of a waiting rollout, and how quickly the server answers meanwhile.

Five thousand clients hold ``POST /process`` open on connections of their own (the dearest way to wait) while one job
after the other blocks the stages; then the same number of jobs wait without connections (``POST /jobs``). Memory is the
growth of the server process's resident size, divided by the jobs (four thousand wait already when it is first read, so
that memory which was free before does not flatter it); ``/status`` is asked on the side.

    python waiting.py [--jobs 5000]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import psutil

from prorl.api import AgentHandler, HandlerRecord, Job
from prorl.plugins.registry import Registry
from prorl.server.serve import run
from prorl.server.settings import Settings, parse_settings

BEFORE = 4000
ROW = {
    "data_source": "waits",
    "prompt": [{"role": "user", "content": "What is the sum of all primes below one hundred? " * 4}],
    "reward_model": {"ground_truth": "1060", "style": "rule"},
}


class Waits(AgentHandler):
    async def init(self, job: Job) -> Any:
        return None, {}, {}

    async def run(self, job: Job) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def eval(self, job: Job) -> dict[str, Any]:
        return {"reward": 1.0}


def raise_file_limit(files: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(files, hard), hard))


def serve() -> None:
    raise_file_limit(20_000)
    registry = Registry(handlers={"waits": HandlerRecord(name="waits", factory=Waits, summary="waits")})
    settings: Settings = parse_settings({"server": {"port": 0}})
    run(settings, registry, on_listening=lambda url: print(url.rsplit(":", 1)[1], flush=True))


def message(method: str, path: str, body: object = None) -> bytes:
    raw = json.dumps(body).encode() if body is not None else b""
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
    )
    return head.encode() + raw


class Client:
    """One keep-alive connection for short calls."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def call(self, method: str, path: str, body: object = None) -> Any:
        self._writer.write(message(method, path, body))
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        return json.loads(await self._reader.readexactly(length))


async def until_waiting(client: Client, jobs: int) -> None:
    while True:
        counts = (await client.call("GET", "/status"))["jobs"]
        if counts["queued"] + counts["running"] >= jobs:
            return
        await asyncio.sleep(0.1)


async def status_latency(client: Client, stop: asyncio.Future[Any]) -> tuple[float, float]:
    taken = []
    while not stop.done():
        began = time.perf_counter()
        await client.call("GET", "/status")
        taken.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(0.005)
    taken.sort()
    return taken[len(taken) // 2], taken[int(len(taken) * 0.99)]


async def probe(port: int) -> None:
    """In a process of its own, so that it measures the server and not the load generator's event loop."""
    print("ready", flush=True)
    stop = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    async with Client(port) as client:
        print(json.dumps(await status_latency(client, stop)))


async def measure(port: int, server: psutil.Process, jobs: int, *, held: bool) -> None:
    async with Client(port) as client:
        for number in range(BEFORE):
            await client.call("POST", "/jobs", {"instance": ROW, "job_id": f"before-{number}"})
        before = server.memory_info().rss
        open_: list[asyncio.StreamWriter] = []

        async def hold(number: int) -> None:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(message("POST", "/process", {"instance": ROW, "job_id": f"held-{number}"}))
            open_.append(writer)

        async def submit() -> None:
            if held:
                for start in range(0, jobs, 100):
                    await asyncio.gather(*(hold(start + n) for n in range(100)))
            else:
                async with Client(port) as other:
                    for number in range(jobs):
                        await other.call("POST", "/jobs", {"instance": ROW, "job_id": f"job-{number}"})
            await until_waiting(client, BEFORE + jobs)

        probe = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "--probe", str(port), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert probe.stdout is not None
        await probe.stdout.readline()  # it asks from here on
        await submit()
        p50_in, p99_in = json.loads((await probe.communicate(b"stop"))[0])
        each = (server.memory_info().rss - before) / jobs / 1024
        p50, p99 = await status_latency(client, asyncio.ensure_future(asyncio.sleep(5)))
        began = time.perf_counter()
        await client.call("POST", "/cancel", {"all": True})
        cancelled = time.perf_counter() - began
        print(
            f"{'POST /process held open' if held else 'POST /jobs':24}: {jobs} waiting, {each:5.1f} KiB each; /status "
            f"p50 {p50:.1f} ms p99 {p99:.1f} ms (while they arrive: {p50_in:.1f} / {p99_in:.1f} ms); all cancelled in "
            f"{cancelled:.2f} s",
            flush=True,
        )
        for writer in open_:
            writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--probe", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve()
        return
    if asked.probe:
        asyncio.run(probe(asked.probe))
        return
    raise_file_limit(20_000)
    for held in (True, False):
        child = subprocess.Popen([sys.executable, str(Path(__file__)), "--serve"], stdout=subprocess.PIPE, text=True)
        try:
            assert child.stdout is not None
            port = int(child.stdout.readline())
            asyncio.run(measure(port, psutil.Process(child.pid), asked.jobs, held=held))
        finally:
            child.terminate()
            child.wait(60)
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}")


if __name__ == "__main__":
    main()
