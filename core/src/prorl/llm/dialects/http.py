"""One way to ask an engine: strict JSON in both directions, every failure a typed fault.

``unreachable`` (no connection, a server error, too busy: another engine may be asked), ``rejected`` (the request is
wrong: asking again changes nothing), ``bad_response`` (it answered something else than its dialect says).
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Generic, TypeVar

import httpx
import msgspec

from prorl.api.errors import ModelFault

T = TypeVar("T")
BUSY = (408, 425, 429)
# A reply of 100,000 tokens with its logprobs and the echoed prompt has about 10 MiB.
LARGEST_ANSWER = 256 << 20
_QUOTED = 500


class Refused(ModelFault):
    """The engine answered with another status than 200; ``said`` is what it wrote beside it."""

    def __init__(self, message: str, *, code: str, status: int, said: str) -> None:
        super().__init__(message, code=code)
        self.status = status
        self.said = said


class Unsupported(Refused):
    """The engine has no such endpoint, or has it switched off."""


class Endpoint(Generic[T]):
    """One endpoint of an engine and the shape of its answers; token ids are never coerced from other types."""

    def __init__(self, client: httpx.AsyncClient, url: str, answer: type[T]) -> None:
        self._client = client
        self._url = url
        self._decoder = msgspec.json.Decoder(answer)

    async def get(self, *, params: Mapping[str, str] | None = None) -> T:
        return self._decode(await self._send(self._client.build_request("GET", self._url, params=params)))

    async def post(self, body: Mapping[str, Any], *, headers: Mapping[str, str] | None = None) -> T:
        """Raises ``ModelFault``; its subclass ``Unsupported`` when the endpoint is not there."""
        content = msgspec.json.encode(body)
        headers = {"content-type": "application/json", **(headers or {})}
        return self._decode(
            await self._send(self._client.build_request("POST", self._url, content=content, headers=headers))
        )

    async def notify(self, body: Mapping[str, Any]) -> None:
        """Post, and take any answer with status 200 for a yes: it may have no body."""
        content = msgspec.json.encode(body)
        headers = {"content-type": "application/json"}
        await self._send(self._client.build_request("POST", self._url, content=content, headers=headers))

    async def probe(self) -> None:
        """Get, and take any answer with status 200 for a yes."""
        await self._send(self._client.build_request("GET", self._url))

    async def get_or_none(self, *, params: Mapping[str, str] | None = None) -> T | None:
        """The answer, or ``None`` where this engine does not offer the endpoint, or offers it in another shape."""
        return await _or_none(self.get(params=params))

    async def post_or_none(self, body: Mapping[str, Any]) -> T | None:
        """As :meth:`get_or_none`. A server that fails on a question it does not know may answer 500 to it."""
        try:
            return await _or_none(self.post(body))
        except Refused:
            return None

    async def _send(self, request: httpx.Request) -> httpx.Response:
        request.headers["accept-encoding"] = "identity"  # nothing to be unpacked to more than it seems
        try:
            response = await self._client.send(request, stream=True)
            await self._read(response)
        except httpx.HTTPError as error:
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            raise ModelFault(f"{self._url} cannot be reached: {reason}", code="unreachable") from error
        except RuntimeError as error:  # the way in which httpx says that a client was closed
            if not self._client.is_closed:
                raise
            raise ModelFault(f"{self._url} is not registered any more", code="unreachable") from error
        if response.status_code == httpx.codes.OK:
            return response
        status, said = response.status_code, self._without_key(response.text)[:_QUOTED]
        message = f"{self._url} answered {status}: {said}"
        if status >= 500 or status in BUSY:
            raise Refused(message, code="unreachable", status=status, said=said)
        kind = Unsupported if status in (403, 404, 405) else Refused
        raise kind(message, code="rejected", status=status, said=said)

    def _without_key(self, text: str) -> str:
        """What a server says goes into results, and some repeat the key that they refuse."""
        key = self._client.headers.get("authorization", "").removeprefix("Bearer ")
        return text.replace(key, "(the key)") if key else text

    async def _read(self, response: httpx.Response) -> None:
        """Take the body in, up to a bound: what stands at the other end is believed in nothing, its size neither."""
        try:
            parts, size = [], 0
            async for part in response.aiter_bytes():
                size += len(part)
                if size > LARGEST_ANSWER:
                    raise ModelFault(f"{self._url} answered more than {LARGEST_ANSWER >> 20} MiB", code="bad_response")
                parts.append(part)
            response._content = b"".join(parts)  # noqa: SLF001 - as httpx's own aread() does, without a bound
        finally:
            await response.aclose()

    def _decode(self, response: httpx.Response) -> T:
        try:
            return self._decoder.decode(response.content)
        except (msgspec.MsgspecError, ValueError) as error:
            raise ModelFault(f"{self._url} answered what it should not: {error}", code="bad_response") from error


async def _or_none(asking: Awaitable[T]) -> T | None:
    try:
        return await asking
    except ModelFault as fault:
        if fault.code == "unreachable":
            raise
        return None
