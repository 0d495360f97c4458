"""Text to ids and back, from a ``tokenizer.json`` on this machine.

Two encoders share one vocabulary. The *special* one is the model's own. The *plain* one knows no added tokens at all,
so nothing a user or a tool writes can become a control token: asking the usual encoder to split special tokens is not
enough, because it lets added tokens pass that are not marked special (Qwen3's ``<tool_response>``, ``</think>``).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer as Encoder

from prorl.api.errors import ConfigError

_FILES = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
_LONG_TEXT = 20_000  # characters; beyond this encoding takes milliseconds, and the library frees the interpreter


class LocalTokenizer:
    """Implements :class:`prorl.api.llm.Tokenizer`.

    ``chat_template`` is Jinja source, ``special_tokens`` the texts that templates name (``bos_token``, ``eos_token``),
    ``digest`` the sha256 of ``tokenizer.json``.
    """

    def __init__(
        self,
        definition: bytes,
        *,
        source: str,
        chat_template: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
    ) -> None:
        self.source = source
        self.chat_template = chat_template
        self.special_tokens = dict(special_tokens or {})
        self._digest = hashlib.sha256(definition).hexdigest()
        try:
            self._special = Encoder.from_buffer(definition)
        except Exception as error:  # the library raises bare Exceptions
            raise ConfigError(f"{source}: tokenizer.json cannot be read: {error}") from error
        self._special.no_truncation()  # a tokenizer.json may carry both, and either would change what is encoded
        self._special.no_padding()
        self._plain = _without_added_tokens(self._special)
        unknown = getattr(self._special.model, "unk_token", None)
        added = self._special.get_added_tokens_decoder().items()
        self._control = {i for i, token in added if len(token.content) > 1 and token.content != unknown}

    @property
    def digest(self) -> str:
        return self._digest

    async def encode(self, text: str, *, special: bool) -> list[int]:
        encode = self._encode_special if special else self._encode_plain
        return encode(text) if len(text) < _LONG_TEXT else await asyncio.to_thread(encode, text)

    async def decode(self, ids: Sequence[int]) -> str:
        return str(self._special.decode(list(ids), skip_special_tokens=False))

    def _encode_special(self, text: str) -> list[int]:
        return list(self._special.encode(text, add_special_tokens=False).ids)

    def _encode_plain(self, text: str) -> list[int]:
        """Some vocabularies hold control tokens as ordinary entries too: there the text is cut inside each of them."""
        ids: list[int] = []
        left = [text]  # pieces, the first one last
        while left:
            piece = left.pop()
            encoding = self._plain.encode(piece, add_special_tokens=False)
            if self._control.isdisjoint(encoding.ids):
                ids += encoding.ids
                continue
            cuts = [0]
            for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
                if token in self._control:
                    if end - start < 2:
                        raise ConfigError(f"{self.source}: plain text becomes control token {token}")
                    cuts.append(start + 1)
            left += reversed([piece[a:b] for a, b in pairwise([*cuts, len(piece)])])
        return ids


def _without_added_tokens(full: Encoder) -> Encoder:
    plain = Encoder(full.model)  # shares the vocabulary: no second copy in memory
    if full.normalizer is not None:
        plain.normalizer = full.normalizer
    if full.pre_tokenizer is not None:
        plain.pre_tokenizer = full.pre_tokenizer
    return plain


class TokenizerShelf:
    """Tokenizers by name and content: a server that is registered anew for every policy version loads nothing twice,
    and a folder that was changed is read again."""

    def __init__(self) -> None:
        self._loaded: dict[str, tuple[str, LocalTokenizer]] = {}  # by name: what was read, and what came of it

    async def load(self, name_or_folder: str) -> LocalTokenizer:
        """From a folder with ``tokenizer.json``, or by its name on the Hugging Face hub (or in its cache).

        Raises ``ConfigError`` that says what is missing.
        """
        files = await asyncio.to_thread(_read, name_or_folder)
        version = files.version()
        known, tokenizer = self._loaded.get(name_or_folder, ("", None))
        if tokenizer is None or known != version:
            tokenizer = await asyncio.to_thread(files.build)
            self._loaded[name_or_folder] = version, tokenizer
        return tokenizer


async def load_tokenizer(name_or_folder: str) -> LocalTokenizer:
    """As :meth:`TokenizerShelf.load`, without keeping it."""
    return await TokenizerShelf().load(name_or_folder)


class _Files(NamedTuple):
    source: str
    definition: bytes
    chat_template: str | None
    special_tokens: dict[str, str]

    def version(self) -> str:
        rest = repr((self.chat_template, sorted(self.special_tokens.items()))).encode()
        return hashlib.sha256(self.definition + rest).hexdigest()

    def build(self) -> LocalTokenizer:
        return LocalTokenizer(
            self.definition,
            source=self.source,
            chat_template=self.chat_template,
            special_tokens=self.special_tokens,
        )


def _read(name_or_folder: str) -> _Files:
    folder = Path(name_or_folder)
    if not folder.is_dir():
        folder = _from_hub(name_or_folder)
    try:
        definition = (folder / "tokenizer.json").read_bytes()
    except OSError as error:
        raise ConfigError(f"{name_or_folder}: no readable tokenizer.json ({error.strerror})") from error
    config = _read_config(folder / "tokenizer_config.json")
    template = _chat_template(folder / "chat_template.jinja", config)
    return _Files(name_or_folder, definition, template, _special_tokens(config))


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - slow to import, and a folder does not need it

    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ConfigError(f"{name}: no such folder")
    try:
        return Path(snapshot_download(name, allow_patterns=_FILES))
    except Exception as error:  # network, missing repository, offline mode: each with its own type
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"{name}: neither a folder here nor a model the hub gives us: {reason}") from error


def _read_config(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path.name} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path.name} must hold a JSON object")
    return config


def _chat_template(path: Path, config: Mapping[str, Any]) -> str | None:
    if path.exists():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several, by name; the one for tools also serves without them
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("tool_use") or named.get("default")
    return template if isinstance(template, str) else None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Values are texts, or objects with a ``content``."""
    found = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found
