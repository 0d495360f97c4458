"""What an engine says of tokens that were sampled before: prompt scoring, for ``prorl verify --engine``.

Few engines can; a dialect that can implements :class:`Scores` itself, or has its scoring in :data:`KNOWN`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import httpx

from prorl.api.llm import Dialect, EngineInfo
from prorl.llm.dialects.sglang_score import SglangScores
from prorl.llm.dialects.vllm_score import VllmScores


@runtime_checkable
class Scores(Protocol):
    async def score(self, ids: Sequence[int], *, temperature: float = 1.0) -> list[float | None]:
        """The logprob of every id after those before it (``None`` for the first), natural logs of the model's own
        distribution, or of the one at ``temperature``.

        Raises ``ModelFault``: with code ``unsupported`` when this server cannot do it at that temperature, else as
        dialects do.
        """
        ...

    async def weights(self) -> str | None:
        """The engine's name of the weights that it has now, if it was told one."""
        ...


KNOWN: Mapping[str, Callable[[httpx.AsyncClient, str, str], Scores]] = {
    "vllm": VllmScores,
    "sglang": SglangScores,
}


def scores_of(dialect: Dialect, info: EngineInfo, client: httpx.AsyncClient, url: str) -> Scores | None:
    """``None``: this engine cannot score."""
    if isinstance(dialect, Scores):
        return dialect
    make = KNOWN.get(info.dialect)
    return None if make is None else make(client, url, info.model)
