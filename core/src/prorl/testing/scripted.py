"""The scripted policy: an engine that plays given replies, token for token, over a real dialect.

A real HTTP server that speaks vLLM's dialect with a real tokenizer; only the choice of words is a function's. What
graders, loops and demos do with it is what they do with a real engine::

    with ScriptedEngine(lambda request: "The answer is 42.") as engine:
        ...  # register engine.url

A deterministic policy's true logprob is 0.0, and that is what is reported unless the script says otherwise.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import tokenizers

from prorl.testing.httpd import HttpServer, Request, Response, json_response
from prorl.testing.script import Played, Policy, Said, ScriptedReply, ScriptedRequest
from prorl.testing.scripted_shapes import completed, error, generated
from prorl.testing.voices import Voice, open_voice

__all__ = ["Policy", "Said", "ScriptedEngine", "ScriptedReply", "ScriptedRequest"]
_REMEMBERED = 200_000


class ScriptedEngine(HttpServer):
    """``tokenizer``: an object, a folder with ``tokenizer.json``, or another engine's url; by default the small one of
    :mod:`prorl.testing.bytebpe`. ``generate=False`` leaves only ``/v1/completions``.

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
        self._generate = generate
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

    async def handle(self, request: Request) -> Response | None:  # noqa: PLR0911 - one return per route
        body = msgspec.json.decode(request.body) if request.body else {}
        match request.path:
            case "/v1/completions":
                return await self._reply(body, body["prompt"], body, completed)
            case "/inference/v1/generate" if self._generate:
                return await self._reply(body, body["token_ids"], body["sampling_params"], generated)
            case "/inference/v1/abort_requests" if self._generate:
                self.abort_requests += body["request_ids"]
                return Response()
            case "/inference/v1/generate" | "/inference/v1/abort_requests":
                return error(403, "Scale-out endpoints are disabled.")
            case "/tokenize":
                ids = await self.voice.encode(body["prompt"])
                return json_response({"count": len(ids), "max_model_len": self.max_context, "tokens": ids})
            case "/detokenize":
                return json_response({"prompt": await self.voice.decode(body["tokens"])})
        return self._describe(request.path)

    def _describe(self, path: str) -> Response:
        match path:
            case "/health":
                return Response()
            case "/v1/models":
                card = {"id": self.model, "owned_by": "vllm", "max_model_len": self.max_context}
                return json_response({"object": "list", "data": [card]})
            case "/version":
                return json_response({"version": "0.32.0"})
            case "/metrics":
                return Response(body=f"process_start_time_seconds {self.incarnation}\n".encode())
            case "/tokenizer_info":
                template = {"chat_template": self.voice.chat_template, **self.voice.special_tokens}
                return json_response({"tokenizer_class": "PreTrainedTokenizerFast", **template})
        return json_response({"detail": "Not Found"}, 404)

    async def _reply(
        self,
        body: dict[str, Any],
        prompt_ids: list[int],
        sampling: dict[str, Any],
        shape: Callable[[ScriptedRequest, Played], Response],
    ) -> Response:
        if body["model"] != self.model:
            return error(404, f"The model `{body['model']}` does not exist. Valid aliases: {self.model}.")
        if len(prompt_ids) >= self.max_context:
            return error(400, f"The decoder prompt (length {len(prompt_ids)}) is longer than {self.max_context}.")
        stream = _prefix_hashes(prompt_ids)
        asked = ScriptedRequest(
            prompt_ids=prompt_ids,
            prompt=await self.voice.decode(prompt_ids),
            call=max(self._calls.get(prefix, 0) for prefix in stream),
            request_id=body["request_id"],
            sampling=sampling,
        )
        self.requests.append(asked)
        played = await self._play(asked, room=self.max_context - len(prompt_ids))
        if len(self._calls) > _REMEMBERED:
            self._calls.clear()
        self._calls[_prefix_hashes(played.token_ids, stream[-1])[-1]] = asked.call + 1
        return shape(asked, played)

    async def _play(self, asked: ScriptedRequest, *, room: int) -> Played:
        version = self.weight_version
        self.in_flight += 1
        try:
            said = self._policy(asked)
            said = await said if inspect.isawaitable(said) else said
            reply = ScriptedReply(text=said) if isinstance(said, str) else said
            await asyncio.sleep(reply.delay_s)
            await self._go.wait()
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        finally:
            self.in_flight -= 1
        return await self._cut(reply, asked.sampling, room, version)

    async def _cut(self, reply: ScriptedReply, sampling: dict[str, Any], room: int, version: str) -> Played:
        """End the reply as an engine would: at a stop token, or where the allowed number of tokens is reached."""
        ids = await self.voice.encode(reply.text) if reply.token_ids is None else list(reply.token_ids)
        ids += [self.voice.end_of_turn] if reply.end else []
        stops = {self.voice.end_of_turn, *sampling["stop_token_ids"]}
        stop = next((place for place, token in enumerate(ids) if token in stops), None)
        ids = ids[: None if stop is None else stop + 1][: min(sampling["max_tokens"], room)]
        stopped = bool(ids) and ids[-1] in stops
        finish = "stop" if stopped or not reply.end else "length"
        halfway = len(ids) if version == self.weight_version else len(ids) // 2
        versions = [(version, 0, halfway), (self.weight_version, halfway, len(ids))]
        return Played(
            token_ids=ids,
            logprobs=(reply.logprobs or [0.0] * len(ids))[: len(ids)],
            finish=finish,
            stop_reason=ids[-1] if stopped and ids[-1] != self.voice.end_of_turn else None,
            versions=[span for span in versions if span[1] < span[2]],
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
