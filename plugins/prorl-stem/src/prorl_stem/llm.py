"""A language model behind an OpenAI-compatible URL: one conversation, one reply."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

import httpx
import msgspec

from prorl_stem.patience import Setback
from prorl_stem.search.http import read_at_most, retry_after
from prorl_stem.settings import LlmSettings

MAX_REPLY_BYTES = 4_000_000
NoReplyCode = Annotated[str, "down, refused or garbled"]


class NoReply(Setback):
    """``code``: ``down`` (no answer, busy), ``refused`` (no key, a wrong one, no such model), ``garbled``."""

    def __init__(self, message: str, code: NoReplyCode, *, again: bool = True, after: float | None = None) -> None:
        super().__init__(message, again=again, after=after)
        self.code = code


class Said(msgspec.Struct):
    content: str | None = None


class Choice(msgspec.Struct):
    message: Said
    finish_reason: str | None = None


class Completion(msgspec.Struct):
    choices: list[Choice]


class Llm:
    """For all jobs of a server. Use it on one event loop, and close it."""

    def __init__(self, settings: LlmSettings) -> None:
        self._settings = settings
        self._places = asyncio.Semaphore(settings.concurrency)
        self._client: httpx.AsyncClient | None = None

    async def reply(self, messages: list[dict[str, str]]) -> str:
        """Raises :class:`NoReply`."""
        async with self._places:
            return await self._ask(messages)

    async def _ask(self, messages: list[dict[str, str]]) -> str:
        settings = self._settings
        body = {"model": settings.model, "messages": messages, "max_tokens": settings.max_tokens, "temperature": 0.0}
        address = f"{settings.url.rstrip('/')}/chat/completions"
        headers = self._headers()
        if self._client is None:
            self._client = httpx.AsyncClient(timeout=None)  # noqa: S113 - the whole call has a time-out, below
        try:
            async with asyncio.timeout(settings.timeout_s):
                request = self._client.build_request("POST", address, json=body, headers=headers)
                response = await self._client.send(request, stream=True)
                content = await read_at_most(response, MAX_REPLY_BYTES)
        except TimeoutError:
            raise NoReply(f"it did not answer within {settings.timeout_s:g} s", "down") from None
        except httpx.HTTPError as error:
            raise NoReply(f"it cannot be reached ({type(error).__name__})", "down") from None
        except Setback:
            raise NoReply("its reply is too long", "garbled") from None
        return _text(response, content)

    def _headers(self) -> dict[str, str]:
        name = self._settings.api_key_env
        if name is None:
            return {}
        key = os.environ.get(name, "").strip()
        if not key or not key.isascii() or not key.isprintable():
            raise NoReply(f"${name} holds no key where the server runs", "refused", again=False)
        return {"Authorization": f"Bearer {key}"}

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


def _text(response: httpx.Response, content: bytes) -> str:
    status = response.status_code
    if status != 200:
        busy = status in (408, 409, 425, 429) or status >= 500
        after = retry_after(response.headers.get("retry-after"))
        raise NoReply(f"it answers HTTP {status}", "down" if busy else "refused", again=busy, after=after)
    try:
        choice = msgspec.json.decode(content, type=Completion).choices[0]
    except (msgspec.DecodeError, msgspec.ValidationError, IndexError, RecursionError):
        raise NoReply("its reply cannot be read", "garbled") from None
    if choice.finish_reason not in (None, "stop", "eos"):
        raise NoReply(f"its reply ended early ({choice.finish_reason:.40})", "garbled")
    return choice.message.content or ""
