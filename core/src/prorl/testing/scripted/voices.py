"""Where a scripted engine's tokens come from: a tokenizer in code, a folder, or another engine that is running."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import tokenizers

from prorl.api.errors import ConfigError
from prorl.llm.plugin import prorl_llm_dialects
from prorl.llm.pool.connect import Connector
from prorl.llm.pool.settings import PoolSettings
from prorl.llm.tokenizers.local import LocalTokenizer
from prorl.testing.bytebpe import CHATML_TEMPLATE, build_tokenizer
from prorl.wire.backends import BackendSpec

_UNKNOWN_SIZE = 1 << 20  # more than any vocabulary


class Voice:
    """A tokenizer with its chat template; ``end_of_turn`` is the id a reply ends with."""

    vocab_size: int
    chat_template: str | None
    special_tokens: Mapping[str, str]
    end_of_turn: int

    async def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Control tokens in the text become tokens: it is what a model would have sampled."""
        raise NotImplementedError

    async def decode(self, ids: Sequence[int]) -> str:
        raise NotImplementedError

    async def close(self) -> None:
        """Let go of what it holds."""


class LocalVoice(Voice):
    def __init__(
        self, tokenizer: tokenizers.Tokenizer, end_of_turn: str, template: str | None, special: Mapping[str, str]
    ) -> None:
        found = tokenizer.token_to_id(end_of_turn)
        self.vocab_size = tokenizer.get_vocab_size()
        if found is None:
            raise ConfigError(
                f"the tokenizer has no token {end_of_turn!r}: give the scripted engine another end_of_turn"
            )
        self._tokenizer = LocalTokenizer(tokenizer.to_str().encode(), source="scripted")
        self.end_of_turn = found
        self.chat_template = template
        self.special_tokens = {"eos_token": end_of_turn, **special}

    async def encode(self, text: str, *, special: bool = True) -> list[int]:
        return await self._tokenizer.encode(text, special=special)

    async def decode(self, ids: Sequence[int]) -> str:
        return await self._tokenizer.decode(ids)


class BorrowedVoice(Voice):
    """Another engine's tokenizer over its HTTP; what was asked before is remembered."""

    def __init__(self, url: str, end_of_turn: str) -> None:
        self._url = url
        self._end_of_turn = end_of_turn
        self._stack = AsyncExitStack()
        self._known: dict[tuple[str, bool], list[int]] = {}

    async def open(self) -> None:
        dialects = {record.name: record for record in prorl_llm_dialects()}
        connection = await Connector(dialects, PoolSettings()).connect(BackendSpec(url=self._url))
        self._stack.push_async_callback(connection.client.aclose)
        self._tokenizer = await connection.dialect.tokenizer()
        self.chat_template = connection.info.chat_template
        self.special_tokens = connection.info.special_tokens
        self.vocab_size = connection.info.vocab_size or _UNKNOWN_SIZE
        ids = await self._tokenizer.encode(self._end_of_turn, special=True)
        if len(ids) != 1:
            await self.close()
            raise ConfigError(f"{self._end_of_turn!r} is not one token at {self._url}: give another end_of_turn")
        self.end_of_turn = ids[0]

    async def encode(self, text: str, *, special: bool = True) -> list[int]:
        if (text, special) not in self._known:
            self._known[text, special] = await self._tokenizer.encode(text, special=special)
        return list(self._known[text, special])

    async def decode(self, ids: Sequence[int]) -> str:
        return await self._tokenizer.decode(ids)

    async def close(self) -> None:
        await self._stack.aclose()


async def open_voice(source: tokenizers.Tokenizer | Path | str | None, end_of_turn: str) -> Voice:
    """A voice from a tokenizer, a folder, an engine's url, or (``None``) the small tokenizer of the test kit."""
    if source is None:
        return LocalVoice(build_tokenizer(), end_of_turn, CHATML_TEMPLATE, {})
    if isinstance(source, tokenizers.Tokenizer):
        return LocalVoice(source, end_of_turn, CHATML_TEMPLATE, {})
    if not str(source).startswith(("http://", "https://")):
        return await asyncio.to_thread(_from_folder, Path(source), end_of_turn)
    borrowed = BorrowedVoice(str(source), end_of_turn)
    await borrowed.open()
    return borrowed


def _from_folder(folder: Path, end_of_turn: str) -> LocalVoice:
    config: dict[str, Any] = {}
    if (path := folder / "tokenizer_config.json").exists():
        config = json.loads(path.read_text())
    template = config.get("chat_template")
    if (path := folder / "chat_template.jinja").exists():
        template = path.read_text()
    special = {key: value for key in ("bos_token", "eos_token") if isinstance(value := config.get(key), str)}
    return LocalVoice(tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")), end_of_turn, template, special)
