"""The engine's own tokenizer, over its HTTP, for backends that were registered without a tokenizer folder.

An engine may lack a way to encode text without its added tokens (vLLM does). Untrusted text must not become control
tokens, so it is then cut inside everything that looks like one, and the parts are encoded one by one: another spelling
of the same text, in which no control token can arise.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence

Encode = Callable[[str, bool], Awaitable[list[int]]]
Decode = Callable[[Sequence[int]], Awaitable[str]]

_PROBE = "<|im_start|>user\nWhat is 12 + 30? Grüße, 世界 \\boxed{42}\n\n    x = [1, 2]<|im_end|>\n"
_LOOKS_SPECIAL = re.compile(r"<[^<>\s]{1,80}>|\[/?[A-Z][A-Z0-9_]{1,40}\]")
_KNOWN_LIMIT = 10_000


class RemoteTokenizer:
    """``encode`` asks for ids, knowing added tokens or not; ``plain`` says whether the engine can do the latter."""

    def __init__(self, encode: Encode, decode: Decode, *, plain: bool, digest: str) -> None:
        self._encode = encode
        self._decode = decode
        self._plain = plain
        self._digest = digest
        self._is_one_token: dict[str, bool] = {}

    @classmethod
    async def probe(cls, encode: Encode, decode: Decode, *, plain: bool) -> RemoteTokenizer:
        """Ask once for a text with everything in it: the digest is that of its ids.

        Not of the model's name: new weights may be served under another one.
        """
        ids = await encode(_PROBE, True)
        digest = hashlib.sha256(repr(ids).encode()).hexdigest()[:16]
        return cls(encode, decode, plain=plain, digest=f"probe-sha256:{digest}")

    @property
    def digest(self) -> str:
        return self._digest

    async def encode(self, text: str, *, special: bool) -> list[int]:
        if not text:
            return []
        if special or self._plain:
            return await self._encode(text, special)
        ids: list[int] = []
        for part in await self._harmless_parts(text):
            ids += await self._encode(part, True)
        return ids

    async def decode(self, ids: Sequence[int]) -> str:
        return await self._decode(ids) if ids else ""

    async def _harmless_parts(self, text: str) -> list[str]:
        parts, start = [], 0
        for match in _LOOKS_SPECIAL.finditer(text):
            if await self._may_be_special(match.group()):
                parts.append(text[start : match.start() + 1])
                start = match.start() + 1
        parts.append(text[start:])
        return [part for part in parts if part]

    async def _may_be_special(self, candidate: str) -> bool:
        """An added token is one id, or two where the tokenizer puts a space before a text."""
        if candidate not in self._is_one_token:
            if len(self._is_one_token) >= _KNOWN_LIMIT:
                self._is_one_token.clear()
            self._is_one_token[candidate] = len(await self._encode(candidate, True)) <= 2
        return self._is_one_token[candidate]
