"""From an address to a dialect: which engine answers there, and what it says of itself."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Mapping
from typing import TypeVar

import httpx
import msgspec

from prorl.api.errors import ConfigError, Fault, ModelFault
from prorl.api.llm import Dialect, EngineInfo
from prorl.api.records import DialectRecord
from prorl.llm.pool.settings import PoolSettings
from prorl.llm.pool.transport import open_client
from prorl.wire.backends import BackendSpec

T = TypeVar("T")
_NO_ENTRY = (401, 403)


class Connection(msgspec.Struct, kw_only=True):
    client: httpx.AsyncClient
    dialect: Dialect
    info: EngineInfo


class Connector:
    def __init__(self, dialects: Mapping[str, DialectRecord], settings: PoolSettings) -> None:
        self._dialects = dialects
        self._settings = settings

    async def connect(self, spec: BackendSpec) -> Connection:
        """Find the dialect of ``spec.url`` and describe the engine. Raises as ``BackendPool.add`` says."""
        if spec.dialect is not None and spec.dialect not in self._dialects:
            raise ConfigError(f"unknown dialect {spec.dialect!r}; known: {', '.join(sorted(self._dialects)) or 'none'}")
        _check_url(spec.url)
        client = open_client(self._settings, tls=spec.url.startswith("https:"))
        try:
            if spec.api_key_env is not None:
                client.headers["authorization"] = f"Bearer {_key(spec.api_key_env)}"
            record = self._dialects[spec.dialect] if spec.dialect else await self._detect(client, spec.url)
            dialect = record.factory.connect(client, spec.url, model=spec.model)
            info = await self._ask(dialect.describe(), f"{record.name} at {spec.url}")
            _check_complete(info, spec)
        except BaseException:
            await client.aclose()
            raise
        return Connection(client=client, dialect=dialect, info=info)

    async def _ask(self, asking: Awaitable[T], what: str) -> T:
        """With a limit, and whatever goes wrong in a dialect as a fault."""
        limit = self._settings.health_timeout_s
        try:
            async with asyncio.timeout(limit):
                return await asking
        except (ConfigError, Fault):
            raise
        except TimeoutError:
            raise ModelFault(f"{what} did not answer in {limit:g} s", code="unreachable") from None
        except Exception as error:
            raise ModelFault(f"{what}: {type(error).__name__}: {error}", code="bad_response") from error

    async def _detect(self, client: httpx.AsyncClient, url: str) -> DialectRecord:
        try:  # anything that answers will do: a refused connection is another error than an unknown engine
            await client.get(url, timeout=self._settings.health_timeout_s)
        except httpx.HTTPError as error:
            reason = f"{type(error).__name__}: {error}"
            raise ModelFault(f"nothing answers at {url}: {reason}", code="unreachable") from error
        for record in sorted(self._dialects.values(), key=lambda r: (-r.preference, r.name)):
            if await self._ask(record.factory.detect(client, url), f"{url} (is it {record.name}?)"):
                return record
        models = await self._ask(client.get(f"{url}/v1/models"), url)
        if models.status_code in _NO_ENTRY:
            raise ConfigError(
                f"{url} wants an API key (it answered {models.status_code}): register it with api_key_env, the name of "
                "an environment variable of this service that holds the right one"
            )
        raise ConfigError(
            f"{url} answers but speaks none of: {', '.join(sorted(self._dialects)) or 'no dialect is installed'}; "
            "give the root of an LLM server (without /v1), or name its dialect"
        )


def _key(variable: str) -> str:
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigError(f"the environment of this service has no {variable}: set it to the LLM server's API key")
    return key


def _check_complete(info: EngineInfo, spec: BackendSpec) -> None:
    """What neither the engine nor the registration says would be missing in every rollout."""
    if not info.max_context and spec.max_context is None:
        raise ConfigError(f"{spec.url} does not say how long its context is: register it with max_context, in tokens")
    if info.takes == "ids" and info.chat_template is None and spec.tokenizer is None:
        raise ConfigError(
            f"{spec.url} ({info.dialect}) hands out no chat template: register it with tokenizer, a folder or hub name"
        )


def _check_url(text: str) -> None:
    """Raises ``ConfigError``: httpx would only find out, in errors of many kinds, when the first call is made."""
    try:
        url = httpx.URL(text)
        root = bool(url.host) and not url.query and not url.fragment
    except (httpx.InvalidURL, ValueError) as error:  # idna's errors are ValueErrors
        raise ConfigError(f"{text!r} is no URL: {error}; give the server's root, like http://host:8000") from None
    if not root:
        raise ConfigError(f"{text!r} is no server's root: give http://host:port, without ? and #")
