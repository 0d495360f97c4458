"""Renderers by tokenizer, template and the job's choices; whoever owns the pool owns one cache.

A renderer outlives the engine it was made with: :meth:`RendererCache.get` offers it the next one's tokenizer.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import msgspec

from prorl.api.errors import ConfigError, ModelFault
from prorl.api.llm import EngineInfo, Tokenizer
from prorl.llm.failover import FailoverTokenizer
from prorl.llm.rendering import Renderer
from prorl.llm.template import ChatTemplate
from prorl.llm.tokenizers import LocalTokenizer
from prorl.wire.rendering import RenderingParams


class RenderedFor(Protocol):
    """What rendering needs of :class:`prorl.llm.backend.Backend`."""

    @property
    def url(self) -> str: ...

    @property
    def info(self) -> EngineInfo: ...

    async def tokenizer(self) -> Tokenizer: ...


class RendererCache:
    def __init__(self) -> None:
        self._renderers: dict[tuple[str, str, bytes], asyncio.Task[Renderer]] = {}
        self._tokenizers: dict[str, FailoverTokenizer] = {}

    async def get(self, backend: RenderedFor, rendering: RenderingParams | None = None) -> Renderer:
        """Raises ``ModelFault`` when the backend's template or tokenizer cannot be used."""
        rendering = rendering or RenderingParams()
        tokenizer = await tokenizer_of(backend)
        source, special = backend.info.chat_template, backend.info.special_tokens
        if isinstance(tokenizer, LocalTokenizer):
            source, special = tokenizer.chat_template or source, {**special, **tokenizer.special_tokens}
        if source is None:
            raise ModelFault(
                f"{backend.url} names no chat template; register it with a tokenizer folder or hub name that has one",
                code="template",
            )
        shared = self._tokenizers.setdefault(tokenizer.digest, FailoverTokenizer(tokenizer))
        shared.offer(tokenizer)
        key = (tokenizer.digest, source, msgspec.json.encode(rendering, order="sorted"))
        task = self._renderers.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            template = ChatTemplate(source, variables={**special, **_switches(rendering)})
            task = self._renderers[key] = asyncio.ensure_future(Renderer.create(template, shared))
        return await asyncio.shield(task)  # others wait for the same one


async def tokenizer_of(backend: RenderedFor) -> Tokenizer:
    try:
        return await backend.tokenizer()
    except ConfigError as error:  # the trainer named a folder that does not work: this rollout cannot mend it
        raise ModelFault(f"the tokenizer of {backend.url} cannot be loaded: {error}", code="tokenizer") from error


def _switches(rendering: RenderingParams) -> dict[str, Any]:
    thinking = {} if rendering.thinking is None else {"enable_thinking": rendering.thinking}
    return {**thinking, **rendering.variables}
