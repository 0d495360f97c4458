"""The scripted policy: an engine that plays given replies, token for token, over a real dialect.

A real HTTP server that speaks an engine's dialect with a real tokenizer; only the choice of words is a function's. What
graders, loops and demos do with it is what they do with a real engine::

    with ScriptedEngine(lambda request: "The answer is 42.") as engine:
        ...  # register engine.url

A deterministic policy's true logprob is 0.0, and that is what is reported unless the script says otherwise.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from pathlib import Path

import msgspec
import tokenizers

from prorl.testing.httpd import HttpServer, Request, Response
from prorl.testing.scripted.script import Asked, Played, Policy, ScriptedReply, ScriptedRequest
from prorl.testing.scripted.speech import Speech
from prorl.testing.scripted.vllm import VllmSpeech
from prorl.testing.scripted.voices import Voice, open_voice

_REMEMBERED = 200_000


class ScriptedEngine(HttpServer):
    """``tokenizer``: an object, a folder with ``tokenizer.json``, or another engine's url; by default the small one of
    :mod:`prorl.testing.bytebpe`. ``speech`` is the dialect: vLLM's, or one of the modules ``scripted_*`` beside this
    one; ``generate=False`` is a vLLM that has only ``/v1/completions``.

    ``requests`` holds every accepted request; ``in_flight`` and ``aborted`` count; ``abort_requests`` are the ids that
    clients asked to abort. ``weight_version`` names the weights of a reply; when it changes while replies are held,
    they carry both. ``incarnation`` is what a restart would change.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        tokenizer: tokenizers.Tokenizer | Path | str | None = None,
        model: str = "scripted",
        max_context: int = 4096,
        end_of_turn: str = "<|im_end|>",
        generate: bool = True,
        speech: Speech | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.max_context = max_context
        self.requests: list[ScriptedRequest] = []
        self.in_flight = 0
        self.aborted = 0
        self.abort_requests: list[str] = []
        self.weight_version = "default"
        self.incarnation = 1
        self.voice: Voice
        self._policy = policy
        self._source = tokenizer
        self._end_of_turn = end_of_turn
        self.speech: Speech = speech or VllmSpeech(generate=generate)
        self._calls: dict[int, int] = {}

    def hold(self) -> None:
        """Keep replies back from now on."""
        self.call(self._gate(open=False))

    def let_go(self) -> None:
        """Give the replies that were kept back, and later ones at once."""
        self.call(self._gate(open=True))

    async def opened(self) -> None:
        self._go = asyncio.Event()
        self._go.set()
        self.voice = await open_voice(self._source, self._end_of_turn)

    async def closing(self) -> None:
        await self.voice.close()

    async def handle(self, request: Request) -> Response | None:
        body = msgspec.json.decode(request.body) if request.body else {}
        if request.path not in self.speech.replies:
            return await self.speech.other(self, request.path, body)
        asked = await self.speech.asked(self, request.path, body)
        if isinstance(asked, Response):
            return asked
        return await self.speech.said(self, asked, self.alter(await self._reply(asked)))

    def alter(self, played: Played) -> Played:
        """For engines that do not keep their promises."""
        return played

    async def _reply(self, asked: Asked) -> Played:
        stream = _prefix_hashes(asked.prompt_ids)
        request = ScriptedRequest(
            prompt_ids=asked.prompt_ids,
            prompt=await self.voice.decode(asked.prompt_ids),
            call=max(self._calls.get(prefix, 0) for prefix in stream),
            request_id=asked.request_id,
            sampling=asked.sampling,
        )
        self.requests.append(request)
        played = await self._play(request, asked)
        if len(self._calls) > _REMEMBERED:
            self._calls.clear()
        self._calls[_prefix_hashes(played.token_ids, stream[-1])[-1]] = request.call + 1
        return played

    async def _play(self, request: ScriptedRequest, asked: Asked) -> Played:
        version = self.weight_version
        self.in_flight += 1
        try:
            said = self._policy(request)
            said = await said if inspect.isawaitable(said) else said
            reply = ScriptedReply(text=said) if isinstance(said, str) else said
            await asyncio.sleep(reply.delay_s)
            await self._go.wait()
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        finally:
            self.in_flight -= 1
        return await self._cut(reply, asked, version)

    async def _cut(self, reply: ScriptedReply, asked: Asked, version: str) -> Played:
        """End the reply as an engine would: at a stop token, or where the allowed number of tokens is reached."""
        room = self.max_context - len(asked.prompt_ids)
        ids = await self.voice.encode(reply.text) if reply.token_ids is None else list(reply.token_ids)
        ids += [self.voice.end_of_turn] if reply.end else []
        stops = {self.voice.end_of_turn, *asked.stop_token_ids}
        stop = next((place for place, token in enumerate(ids) if token in stops), None)
        ids = ids[: None if stop is None else stop + 1][: min(asked.max_tokens, room)]
        stopped = bool(ids) and ids[-1] in stops
        halfway = len(ids) if version == self.weight_version else len(ids) // 2
        versions = [(version, 0, halfway), (self.weight_version, halfway, len(ids))]
        logprobs: list[float | None] = [*(reply.logprobs or [0.0] * len(ids))]
        return Played(
            token_ids=ids,
            logprobs=logprobs[: len(ids)],
            finish="stop" if stopped or not reply.end else "length",
            stop_reason=ids[-1] if stopped and ids[-1] != self.voice.end_of_turn else None,
            versions=[span for span in versions if span[1] < span[2]],
            named=list(ids),
            echo=list(asked.prompt_ids),
            read=len(asked.prompt_ids),
        )

    async def _gate(self, *, open: bool) -> None:
        if open:
            self._go.set()
        else:
            self._go.clear()


def _prefix_hashes(ids: Sequence[int], start: int = 0) -> list[int]:
    """Of every prefix, in one pass: a conversation is known by a stream that the next prompt begins with."""
    hashes = [start]
    for token in ids:
        hashes.append((hashes[-1] * 1_000_003 + token + 1) % ((1 << 61) - 1))
    return hashes
