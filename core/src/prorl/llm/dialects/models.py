"""``/v1/models``: nearly every engine has it, and names itself there."""

from __future__ import annotations

from collections.abc import Sequence

import httpx
import msgspec

from prorl.api.errors import ConfigError
from prorl.llm.dialects.http import Endpoint


class ModelMeta(msgspec.Struct):
    """llama.cpp's own."""

    n_vocab: int


class ModelCard(msgspec.Struct):
    id: str
    owned_by: str | None = None
    max_model_len: int | None = None
    meta: ModelMeta | None = None


class Models(msgspec.Struct):
    data: list[ModelCard]


async def models_at(client: httpx.AsyncClient, url: str) -> list[ModelCard]:
    """What is served there; empty where the server has no such list, or one of another form."""
    models = await Endpoint(client, f"{url}/v1/models", Models).get_or_none()
    return [] if models is None else models.data


async def owned_by(client: httpx.AsyncClient, url: str, owner: str) -> bool:
    """Whether the models there name this owner: engines write their own name."""
    return any(card.owned_by == owner for card in await models_at(client, url))


def choose(cards: Sequence[ModelCard], model: str | None, url: str) -> ModelCard:
    """The model that was asked for, else the first. Raises ``ConfigError`` that names what is served."""
    card = next((card for card in cards if model in (None, card.id)), None)
    if card is None:
        serves = ", ".join(card.id for card in cards[:20])
        raise ConfigError(f"{url} does not serve the model {model!r}; it serves: {serves or 'nothing'}")
    return card
