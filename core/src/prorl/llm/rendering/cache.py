"""Renderers by tokenizer, template and the job's choices; whoever owns the pool owns one cache.

A renderer outlives the engine it was made with: :meth:`RendererCache.get` offers it the next one's tokenizer.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Protocol

import msgspec

from prorl.api.errors import ConfigError, ModelFault
from prorl.api.llm import EngineInfo, Tokenizer
from prorl.llm.rendering.renderer import Renderer
from prorl.llm.rendering.source import Source
from prorl.llm.rendering.template import ChatTemplate
from prorl.llm.rendering.textual import TextRenderer
from prorl.llm.tokenizers.failover import FailoverTokenizer
from prorl.llm.tokenizers.local import LocalTokenizer
from prorl.llm.toolformats import choose
from prorl.wire.rendering import RenderingParams

_KEPT = 64  # jobs choose variables as they like; the least recently used is made again if it is asked for

AnyRenderer = Renderer | TextRenderer


class RenderedFor(Protocol):
    """What rendering needs of :class:`prorl.llm.pool.backend.Backend`."""

    @property
    def url(self) -> str: ...

    @property
    def info(self) -> EngineInfo: ...

    async def tokenizer(self) -> Tokenizer: ...


class RendererCache:
    def __init__(self) -> None:
        self._renderers: OrderedDict[tuple[str, str, bytes], asyncio.Task[Renderer]] = OrderedDict()
        self._tokenizers: dict[str, FailoverTokenizer] = {}

    def __len__(self) -> int:
        return len(self._renderers)

    async def get(self, backend: RenderedFor, rendering: RenderingParams | None = None) -> AnyRenderer:
        """Raises ``ModelFault`` when the backend's template or tokenizer cannot be used, ``TaskFault`` when the
        template knows nothing of what the job chose."""
        rendering = rendering or RenderingParams()
        if backend.info.takes == "messages":
            return TextRenderer(rendering)
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
        choices = msgspec.structs.replace(rendering, history="keep")  # the chat's business
        key = (tokenizer.digest, source, msgspec.json.encode(choices, order="sorted"))
        task = self._renderers.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._renderers[key] = asyncio.ensure_future(_create(source, special, shared, rendering))
        self._renderers.move_to_end(key)
        while len(self._renderers) > _KEPT:
            self._renderers.popitem(last=False)
        return await asyncio.shield(task)  # others wait for the same one


async def source_of(backend: RenderedFor, renderer: AnyRenderer) -> Source:
    """Whence the tokens of a segment come, for its trajectory to name."""
    if isinstance(renderer, TextRenderer):
        return Source(model=backend.info.model)
    tokenizer = await tokenizer_of(backend)
    name = getattr(tokenizer, "source", f"{backend.info.dialect}:{backend.info.model}")
    return Source(
        model=backend.info.model,
        tokenizer=f"{name}#{renderer.tokenizer.digest}",
        template=f"{name}#{renderer.template.digest}",
    )


async def tokenizer_of(backend: RenderedFor) -> Tokenizer:
    try:
        return await backend.tokenizer()
    except ConfigError as error:  # the trainer named a folder that does not work: this rollout cannot mend it
        raise ModelFault(f"the tokenizer of {backend.url} cannot be loaded: {error}", code="tokenizer") from error


async def _create(
    source: str, special: Mapping[str, str], tokenizer: Tokenizer, rendering: RenderingParams
) -> Renderer:
    template = ChatTemplate(source, variables=special)
    template = template.switched(thinking=rendering.thinking, variables=rendering.variables)
    return await Renderer.create(template, tokenizer, tool_format=choose(rendering.tool_format, template))
