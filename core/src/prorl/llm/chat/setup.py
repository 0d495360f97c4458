"""What all conversations of a job share: a lease on the pool, renderers, the ledger, the job's own choices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from prorl.api.llm import Conversation, Generation
from prorl.llm.chat.ledger import Ledger
from prorl.llm.rendering.cache import RenderedFor, RendererCache
from prorl.wire.rendering import RenderingParams
from prorl.wire.sampling import SamplingParams


class SampledReply(Protocol):
    """What a chat needs of :class:`prorl.llm.pool.lease.Sampled`."""

    @property
    def generation(self) -> Generation: ...

    @property
    def backend(self) -> str: ...

    @property
    def policy_version(self) -> str: ...

    @property
    def ms(self) -> float: ...


class ChatLease(Protocol):
    """What a chat needs of :class:`prorl.llm.pool.lease.Lease`."""

    async def ready(self) -> RenderedFor: ...

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, conversation: Conversation | None = None
    ) -> SampledReply: ...

    def lost(self, backend: Any, reason: str) -> None: ...


class ChatSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What all chats of a job share. ``spend(model_s=...)`` accounts the time of model calls; ``emit(kind, **data)``
    tells the job's watchers."""

    lease: ChatLease
    renderers: RendererCache
    ledger: Ledger
    sampling: SamplingParams = SamplingParams()
    rendering: RenderingParams = RenderingParams()
    spend: Callable[..., None] | None = None
    emit: Callable[..., None] | None = None
    now: datetime = msgspec.field(default_factory=lambda: datetime.now(UTC).astimezone())
