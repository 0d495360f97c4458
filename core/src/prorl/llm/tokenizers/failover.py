"""One tokenizer, asked of whichever engine is there to answer.

A tokenizer over HTTP dies with its engine, or with that engine's registration; a conversation goes on. Engines whose
tokenizers have one digest are interchangeable here: the latest that was offered is asked first, and one that does not
answer is left out until it is offered again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from prorl.api.errors import ModelFault
from prorl.api.llm import Tokenizer

T = TypeVar("T")
_KEPT = 8


class FailoverTokenizer:
    """Implements :class:`prorl.api.llm.Tokenizer`. All sources have the digest of the first."""

    def __init__(self, first: Tokenizer) -> None:
        self.digest = first.digest
        self._sources: list[Tokenizer] = [first]

    @property
    def current(self) -> Tokenizer | None:
        """The one that is asked first; ``None`` when none is left."""
        return self._sources[0] if self._sources else None

    def offer(self, source: Tokenizer) -> None:
        if source is not self.current:
            self._sources = [source, *(known for known in self._sources if known is not source)][:_KEPT]

    async def encode(self, text: str, *, special: bool) -> list[int]:
        return await self._ask(lambda source: source.encode(text, special=special))

    async def decode(self, ids: Sequence[int]) -> str:
        return await self._ask(lambda source: source.decode(ids))

    async def _ask(self, call: Callable[[Tokenizer], Awaitable[T]]) -> T:
        fault = ModelFault("no engine is left whose tokenizer could be asked", code="unreachable")
        for source in list(self._sources):
            try:
                return await call(source)
            except ModelFault as error:
                if error.code != "unreachable":
                    raise
                fault = error
                self._sources = [known for known in self._sources if known is not source]
        raise fault
