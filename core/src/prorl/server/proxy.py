"""``/proxy/{job_id}/...``: the APIs that agents speak, in front of the jobs' doors.

An ASGI application of its own, for two things that routes do not tell: whether the client is still there, and
whether an answer went out in full. A reply is sampled to its end before a word of it is sent; whoever asked for a
stream hears comments until then, and then the API's own sequence of events. A refusal that comes before the first
comment still has its HTTP status.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import unquote

import msgspec
from litestar.types import Receive, Scope, Send

from prorl.capture.apis import API_ROUTES, COUNT, Api, api_of
from prorl.capture.door import ENDED, Door, refusal_of
from prorl.capture.doors import Doors
from prorl.capture.messages import Messages
from prorl.capture.talk import Asked, Marks, Refusal

log = logging.getLogger("prorl.server")
JSON = b"application/json"
EVENTS = b"text/event-stream"
# Clients differ in whether /v1 is theirs to add: it may be missing, or there twice.
# What a path ends with may be anything, a line break too: a pattern that can fail there would try every /v1 in turn.
ROUTE = re.compile(r"(?:/proxy)?/(?P<job>[^/]+)(?:/v1)*/(?P<what>.+?)/?", re.DOTALL)


class Proxy:
    """``only`` restricts it to one job. ``body_limit`` in bytes; ``quiet_s`` between comments on a stream."""

    def __init__(self, doors: Doors, *, body_limit: int, quiet_s: float, only: str | None = None) -> None:
        self._doors = doors
        self._body_limit = body_limit
        self._quiet_s = quiet_s
        self._only = only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = str(scope.get("method")), str(scope["path"])
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        route = ROUTE.fullmatch(path)
        job_id, what = (unquote(route["job"]), route["what"]) if route else ("", "")
        api, line = api_of(what), _Line(receive, send)
        door: Door | None = None
        try:
            door = self._door(job_id)
            door.admit(_key(headers))
            await self._route(door, api, f"{method} {what}", headers, line)
        except _ClientGone:
            return
        except Exception as error:
            refusal = _refusal(error, door)
            if door is not None:
                door.turned_away(path[:300], refusal)
            if line.begun:
                await line.end(api.late_refusal(refusal))
            else:
                await line.whole(refusal.status, api.refusal(refusal))

    async def _route(self, door: Door, api: Api, what: str, headers: dict[str, str], line: _Line) -> None:
        if what == "GET models":
            await line.whole(200, msgspec.json.encode(MODELS))
            return
        if what == f"POST {COUNT}":
            messages = Messages()
            tokens = await door.measure(messages.parse_count(await line.body(self._body_limit)))
            await line.whole(200, messages.count(tokens))
            return
        if what.removeprefix("POST ") not in API_ROUTES:
            raise _nothing_at(what)
        asked = api.parse(await line.body(self._body_limit))
        await self._serve(door, api, asked, _marks(headers), line)

    def _door(self, job_id: str) -> Door:
        if not job_id or (self._only is not None and job_id != self._only):
            raise _nothing_at(f"/proxy/{job_id}")
        return self._doors.find(job_id)

    async def _serve(self, door: Door, api: Api, asked: Asked, marks: Marks, line: _Line) -> None:
        sample = door.ask(asked, marks)
        streams = "stream" in asked.wants
        with sample.attended():
            async with line.watched():
                while not await line.until(sample.task, self._quiet_s if streams else None):
                    await line.more(api.keep_alive())
                if sample.task.cancelled():
                    raise Refusal("unknown", ENDED)
                answer = sample.task.result()
                if streams:
                    await line.more(b"".join(api.stream(asked, answer)))
                    sample.delivered |= await line.end()
                else:
                    sample.delivered |= await line.whole(200, api.answer(asked, answer))


class _ClientGone(Exception):  # noqa: N818 - nobody's error
    """There is nobody to answer."""


class _Line:
    """One request's connection."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._gone: asyncio.Task[None] | None = None
        self.begun = False

    async def body(self, limit: int) -> bytes:
        parts, size, more = [], 0, True
        while more:
            message: Any = await self._receive()
            if message["type"] == "http.disconnect":
                raise _ClientGone
            size += len(message.get("body", b""))
            if size > limit:
                raise Refusal("too_large", "the body is larger than [server] body_limit_mb allows")
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        return b"".join(parts)

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Notice inside the block when the client goes away."""
        self._gone = asyncio.create_task(self._wait_for_leave())
        try:
            yield
        finally:
            self._gone.cancel()

    async def _wait_for_leave(self) -> None:
        message: Any = {}
        while message.get("type") != "http.disconnect":
            message = await self._receive()

    async def until(self, task: asyncio.Task[Any], quiet_s: float | None) -> bool:
        """Whether ``task`` has ended within ``quiet_s``. Raises when the client goes away first."""
        watch = {task} if self._gone is None else {task, self._gone}
        await asyncio.wait(watch, timeout=quiet_s, return_when=asyncio.FIRST_COMPLETED)
        if not task.done() and self._gone is not None and self._gone.done():
            raise _ClientGone
        return task.done()

    async def whole(self, status: int, body: bytes) -> bool:
        """A whole answer; says whether the client was there to the end."""
        head = [(b"content-type", JSON), (b"content-length", str(len(body)).encode())]
        await self._start(status, head)
        await self._body(body)
        return await self.end()

    async def more(self, body: bytes) -> None:
        """The next piece of a stream."""
        if not self.begun:
            await self._start(
                200, [(b"content-type", EVENTS), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
            )
        await self._body(body)

    async def end(self, body: bytes = b"") -> bool:
        if body:
            await self._body(body)
        await asyncio.sleep(0)  # a leave that is known to the server becomes known here
        there = self._gone is None or not self._gone.done()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        return there

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.begun = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _body(self, body: bytes) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": True})


MODELS = {
    "object": "list",
    "data": [{"id": "policy", "object": "model", "type": "model", "created": 0, "owned_by": "prorl"}],
    "has_more": False,
}


def _nothing_at(place: str) -> Refusal:
    served = ", ".join(f"POST {what}" for what in (*API_ROUTES, COUNT))
    return Refusal("unknown", f"nothing at {place[:300]}: below /proxy/<job>/v1/ there are {served}, GET models")


def _key(headers: dict[str, str]) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else None
    return headers.get("x-api-key") or bearer


def _marks(headers: dict[str, str]) -> Marks:
    count = headers.get("x-stainless-retry-count", "")
    return Marks(
        retry=count.isdecimal() and int(count) > 0,
        first=count == "0",
        idempotency_key=_short(headers.get("idempotency-key")),
        sample=headers.get("x-prorl-sample", "")[:200],
        agent=headers.get("x-prorl-agent", "")[:200],
    )


def _short(key: str | None) -> str | None:
    """A client may send as many keys as it likes, of any length, and all are kept."""
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest() if key else None


def _refusal(error: BaseException, door: Door | None) -> Refusal:
    refusal = refusal_of(error)
    if refusal is None:
        log.error("a model call of job %s failed", door.job_id if door else "?", exc_info=error)
        return Refusal("broken", f"an error of the server ({type(error).__name__}); its log has the rest")
    return refusal
