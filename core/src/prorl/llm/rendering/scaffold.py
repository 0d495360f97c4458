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
_START = re.compile("Q[0-9a-f]{24}A")
_PART = re.compile("Q[0-9a-f]{24}A|Z[0-9a-f]{24}Q")
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

    def forms(self) -> list[tuple[str, Transform]]:
        """What templates make of the body, the longest first: where it stands whole, no lesser form is meant."""
        return sorted(((each(self.text), each) for each in _TRANSFORMS), key=lambda form: -len(form[0]))


@dataclass(frozen=True, slots=True)
class Slot:
    index: int
    transform: Transform = field(compare=False)


Piece = str | Slot


def cut(rendered: str, probes: Sequence[Probe]) -> tuple[list[Piece], list[int]]:
    """Cut a rendered text at its probes; also the indices of probes that are not in it. One pass over the text."""
    known = {probe.start: index for index, probe in enumerate(probes)}
    ours = known.keys() | {probe.end for probe in probes}
    pieces: list[Piece] = []
    missing = set(range(len(probes)))
    at = 0
    for match in _START.finditer(rendered):
        if (index := known.get(match[0])) is None:
            continue
        for form, transform in probes[index].forms():
            begin = match.start() - form.index(match[0])
            if begin >= at and rendered.startswith(form, begin):
                pieces += [rendered[at:begin], Slot(index, transform)]
                at = begin + len(form)
                missing.discard(index)
                break
    pieces.append(rendered[at:])
    for piece in pieces:
        # Words of tools' descriptions, which are not probed, may look like a part of a probe.
        if isinstance(piece, str) and any(part in ours for part in _PART.findall(piece)):
            raise ModelFault(
                "the chat template changes message bodies in a way that is not known here", code="template"
            )
    return [piece for piece in pieces if piece != ""], sorted(missing)


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
        self._splits: dict[str, list[str | Run]] = {}

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
            filled = "".join(p if isinstance(p, str) else p.transform(clean(bodies[p.index])) for p in run.pieces)
            ids += await self._tokenizer.encode(filled, special=False)
            text.append(filled)
        return ids, "".join(text)

    async def _split(self, text: str) -> list[str | Run]:
        """At control tokens. Where that is not what the tokenizer itself does (tokens that swallow the space around
        them), the text stays whole."""
        if text not in self._splits:
            if len(self._splits) > 1000:
                self._splits.clear()
            self._splits[text] = await self._split_anew(text)
        return self._splits[text]

    async def _split_anew(self, text: str) -> list[str | Run]:
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


def clean(body: str) -> str:
    """Without lone surrogates, which no encoder takes, JSON's neither (output that was not UTF-8, names of files)."""
    try:
        body.encode()
    except UnicodeEncodeError:
        return body.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return body
