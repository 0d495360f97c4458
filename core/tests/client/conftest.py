"""A rollout server that misbehaves on demand, over real sockets: what a client must survive is mostly not an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest

from prorl.client import RolloutClient
from prorl.testing.httpd import stop_listening
from prorl.wire import JobRequest, JobView, RolloutResult

Answer = Callable[["Peer", "Call"], Awaitable[None]]


class Call(msgspec.Struct):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    writer: asyncio.StreamWriter

    async def reply(self, body: object, *, status: int = 200, **headers: str) -> None:
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        fields = {"content-length": str(len(content)), "content-type": "application/json"}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.writer.write(f"HTTP/1.1 {status} X\r\n{head}\r\n".encode() + content)
        await self.writer.drain()

    def drop(self) -> None:
        self.writer.transport.abort()


class Peer:
    """Answers ``path`` by the functions queued for it; the last one stays. Remembers every call."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._called = asyncio.Condition()
        self.script: dict[str, list[Answer]] = {}
        self.most_at_once = 0
        self.connections = 0
        self.port = 0
        self._at_once = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def on(self, path: str, *answers: Answer) -> None:
        self.script[path] = list(answers)

    def bodies(self, path: str) -> list[JobRequest]:
        return [msgspec.json.decode(call.body, type=JobRequest) for call in self.calls if call.path == path]

    async def received(self, path: str, count: int) -> None:
        async with self._called:
            await self._called.wait_for(lambda: sum(call.path == path for call in self.calls) >= count)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        """As SIGKILL would: every connection breaks, nobody listens any more."""
        assert self._server is not None
        await stop_listening(self._server)
        for writer in list(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                method, path, _ = head[0].split(" ")
                headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:] if line)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                call = Call(method, path, headers, body, writer)
                async with self._called:
                    self.calls.append(call)
                    self._called.notify_all()
                answers = self.script[path]
                self._at_once += 1
                self.most_at_once = max(self.most_at_once, self._at_once)
                try:
                    await (answers.pop(0) if len(answers) > 1 else answers[0])(self, call)
                finally:
                    self._at_once -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()


async def drops(_: Peer, call: Call) -> None:
    call.drop()


async def freezes(_: Peer, call: Call) -> None:
    await asyncio.sleep(3600)


async def result(_: Peer, call: Call) -> None:
    request = msgspec.json.decode(call.body, type=JobRequest)
    await call.reply(
        RolloutResult(job_id=request.job_id or "?", status="completed", stage="eval", handler="h", reward=1.0)
    )


async def accepted(_: Peer, call: Call) -> None:
    request = msgspec.json.decode(call.body, type=JobRequest)
    await call.reply(JobView(job_id=request.job_id or "?", state="queued", handler="h"), status=202)


def replies(body: object, *, status: int = 200, **headers: str) -> Answer:
    async def answer(_: Peer, call: Call) -> None:
        await call.reply(body, status=status, **headers)

    return answer


class Ways:
    """The answers, as a fixture, since test folders are not importable."""

    drops = staticmethod(drops)
    freezes = staticmethod(freezes)
    result = staticmethod(result)
    accepted = staticmethod(accepted)
    replies = staticmethod(replies)


@pytest.fixture
def ways() -> type[Ways]:
    return Ways


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    made = Peer()
    await made.start()
    yield made
    await made.kill()


@pytest.fixture
async def client(peer: Peer) -> AsyncIterator[RolloutClient]:
    """Its heartbeats are far apart: a busy machine's pause is no silence."""
    async with RolloutClient(peer.url, concurrency=4, timeout_s=10, heartbeat_s=10, give_up_s=30) as made:
        yield made


@pytest.fixture
async def watchful(peer: Peer) -> AsyncIterator[RolloutClient]:
    """One that soon asks whether a silent server lives."""
    async with RolloutClient(peer.url, concurrency=4, timeout_s=10, heartbeat_s=0.3, give_up_s=30) as made:
        yield made
