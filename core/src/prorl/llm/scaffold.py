"""What a template puts around message bodies, as ids and slots, so that a body can never act as markup.

A template is rendered with random probes in place of the bodies. The result is cut at the probes into *scaffold* text
and *slots*, and the scaffold at its control tokens. What lies between two control tokens (scaffold and bodies together)
is encoded in one go, by the encoder that knows no added tokens: the ids are the ones the model was trained on, and
nothing in a body can become a control token.

A body is wrapped in whitespace and holds characters that JSON escapes when it is probed, which shows what the template
does to it (``| trim``, ``| tojson``); the same is then done to the real body.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from prorl.api.errors import ModelFault
from prorl.api.llm import Tokenizer

Transform = Callable[[str], str]
_PAD = "\n" * 7, "\x0b"  # more newlines than any template writes; a vertical tab, which only `strip()` takes away
_MIDDLE = '"\n\\<é>'
# From the least to the most that is taken away: what a lesser one yields contains what a greater one yields.
_TRANSFORMS: tuple[Transform, ...] = (
    lambda text: text,
    lambda text: text.lstrip("\n"),
    lambda text: text.rstrip("\n"),
    lambda text: text.strip("\n"),
    str.lstrip,
    str.rstrip,
    str.strip,
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    lambda text: json.dumps(text)[1:-1],
    lambda text: json.dumps(text.strip(), ensure_ascii=False)[1:-1],
    lambda text: json.dumps(text.strip())[1:-1],
)
_MARKUP = re.compile(r"<[^<>\s]{1,64}>|\[[^\[\]\s]{1,32}\]")

# Added tokens of many vocabularies. An encoder that makes them of untrusted text cannot be used.
_GUARDED = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


class Probe:
    """Stands for one body while a template renders."""

    def __init__(self) -> None:
        self.start, self.end = f"Q{secrets.token_hex(12)}A", f"Z{secrets.token_hex(12)}Q"

    @property
    def text(self) -> str:
        outer, inner = _PAD
        return f"{outer}{inner}{self.start}{_MIDDLE}{self.end}{inner}{outer}"

    def found_as(self, rendered: str) -> dict[str, Transform]:
        """The forms in which the body came out, and what made them so. Empty: the template left the body out."""
        if self.start not in rendered:
            return {}
        found: dict[str, Transform] = {}
        for transform in _TRANSFORMS:
            if (form := transform(self.text)) in rendered:
                found.setdefault(form, transform)
        return found


@dataclass(frozen=True, slots=True)
class Slot:
    index: int
    transform: Transform = field(compare=False)


Piece = str | Slot


def cut(rendered: str, probes: Sequence[Probe]) -> tuple[list[Piece], list[int]]:
    """Cut a rendered text at its probes; also the indices of probes that are not in it."""
    forms: dict[str, Slot] = {}
    missing = []
    for index, probe in enumerate(probes):
        found = probe.found_as(rendered)
        forms.update((form, Slot(index, transform)) for form, transform in found.items())
        if not found and probe.start not in rendered:
            missing.append(index)
    pieces: list[Piece] = [rendered]
    if forms:
        # Longest first: where a body stands whole, no lesser form of it may match inside.
        choices = sorted(forms, key=len, reverse=True)
        parts = re.split("(" + "|".join(map(re.escape, choices)) + ")", rendered)
        pieces = [forms.get(part, part) for part in parts if part]
    scaffold = "".join(piece for piece in pieces if isinstance(piece, str))
    if any(probe.start in scaffold or probe.end in scaffold for probe in probes):
        raise ModelFault("the chat template changes message bodies in a way that is not known here", code="template")
    return pieces, missing


@dataclass(frozen=True, slots=True)
class Run:
    """Between two control tokens: either known ids, or pieces that are encoded once the bodies are there."""

    text: str
    ids: tuple[int, ...]
    pieces: tuple[Piece, ...] = ()


class Scaffolder:
    """Encodes scaffolds for one tokenizer, and fills them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._controls: dict[str, int | None] = {}

    async def control(self, text: str) -> int | None:
        """The id of a text that is one control token; ``None`` for any other."""
        if text not in self._controls:
            if len(self._controls) > 10_000:  # tool descriptions may be full of <words>
                self._controls.clear()
            special = await self._tokenizer.encode(text, special=True)
            plain = await self._tokenizer.encode(text, special=False) if len(special) == 1 else special
            self._controls[text] = special[0] if special != plain else None
        return self._controls[text]

    async def check(self) -> None:
        """Raises ``ModelFault`` where a tokenizer cannot be appended with, or lets untrusted text become markup."""
        encode, decode = self._tokenizer.encode, self._tokenizer.decode
        a, b = await encode("a", special=False), await encode("b", special=False)
        if await decode([*a, *b]) != "ab":
            raise ModelFault(
                "this tokenizer puts a space before every piece of text, which cannot be appended exactly",
                code="tokenizer_unsupported",
            )
        for text in _GUARDED:
            if len(await encode(text, special=False)) == 1:
                raise ModelFault(
                    f"the engine's tokenizer makes a control token of {text} in untrusted text; "
                    "register the backend with a tokenizer folder or hub name",
                    code="tokenizer_unsafe",
                )

    async def first_control(self, text: str) -> tuple[str, int] | None:
        """The first control token in a scaffold text, and where it begins."""
        for match in _MARKUP.finditer(text):
            if await self.control(match[0]) is not None:
                return match[0], match.start()
        return None

    async def build(self, pieces: Sequence[Piece]) -> list[Run]:
        runs: list[Run] = []
        pending: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, Slot):
                pending.append(piece)
                continue
            for part in await self._split(piece):
                if isinstance(part, str):
                    pending.append(part)
                else:
                    runs += await self._close(pending)
                    pending = []
                    runs.append(part)
        return runs + await self._close(pending)

    async def fill(self, runs: Sequence[Run], bodies: Sequence[str]) -> tuple[list[int], str]:
        """Ids and text with the bodies in their slots."""
        ids: list[int] = []
        text: list[str] = []
        for run in runs:
            if not run.pieces:
                ids += run.ids
                text.append(run.text)
                continue
            filled = "".join(p if isinstance(p, str) else p.transform(_clean(bodies[p.index])) for p in run.pieces)
            ids += await self._tokenizer.encode(filled, special=False)
            text.append(filled)
        return ids, "".join(text)

    async def _split(self, text: str) -> list[str | Run]:
        """At control tokens. Where that is not what the tokenizer itself does (tokens that swallow the space around
        them), the text stays whole."""
        parts = [part async for part in self._parts(text)]
        ids: list[int] = []
        for part in parts:
            ids += await self._tokenizer.encode(part, special=False) if isinstance(part, str) else part.ids
        whole = await self._tokenizer.encode(text, special=True)
        return parts if ids == whole else [Run(text, tuple(whole))]

    async def _parts(self, text: str) -> AsyncIterator[str | Run]:
        at = 0
        for match in _MARKUP.finditer(text):
            if (token_id := await self.control(match[0])) is not None:
                if match.start() > at:
                    yield text[at : match.start()]
                yield Run(match[0], (token_id,))
                at = match.end()
        if at < len(text):
            yield text[at:]

    async def _close(self, pieces: list[Piece]) -> list[Run]:
        if not pieces:
            return []
        if any(isinstance(piece, Slot) for piece in pieces):
            return [Run("", (), tuple(pieces))]
        text = "".join(piece for piece in pieces if isinstance(piece, str))
        return [Run(text, tuple(await self._tokenizer.encode(text, special=False)))]


def _clean(body: str) -> str:
    """Without lone surrogates, which no encoder takes (output that was not UTF-8)."""
    try:
        body.encode()
    except UnicodeEncodeError:
        return body.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return body
