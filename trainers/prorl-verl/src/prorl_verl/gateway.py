"""verl's engines as an LLM server: token ids in, token ids out, over verl's own client.

A rollout server could call verl's engines by their addresses, but would then bypass what verl's client does: admission
while weights are synchronised, going on after an abort, least-loaded and sticky routing, versions. So the worker hosts
this small server. It speaks vLLM's ``/inference/v1/generate``, under a path that nobody guesses.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection
from typing import Any

import msgspec
from aiohttp import web
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient

LARGEST_REQUEST = 64 << 20
RESUME_AFTER_S = 1.0  # verl's own pause before it goes on after an abort


class Ask(msgspec.Struct):
    token_ids: list[int]
    request_id: str
    sampling_params: dict[str, Any]
    priority: int = 0


class Reply(msgspec.Struct):
    """``spans``: ``[version, start, end]`` over ``ids``."""

    ids: list[int] = []
    logprobs: list[float] = []
    spans: list[tuple[str, int, int]] = []
    finish: str = "stop"

    def add(self, ids: list[int], logprobs: list[float], version: str) -> None:
        start = len(self.ids)
        self.ids += ids
        self.logprobs += logprobs
        if self.spans and self.spans[-1][0] == version:
            start = self.spans.pop()[1]
        if start < len(self.ids):
            self.spans.append((version, start, len(self.ids)))


class Gateway:
    """``engines`` is verl's ``LLMServerClient``; ``ends`` are ids that end a reply beside those a request names."""

    def __init__(
        self, engines: Any, *, model: str, max_context: int, logprobs_mode: str, ends: Collection[int] = ()
    ) -> None:
        self._engines = engines
        self._model = model
        self._max_context = max_context
        self._logprobs_mode = logprobs_mode
        self._ends = frozenset(ends)
        # verl's resuming client joins the pieces of an interrupted reply and keeps only the lowest and highest version.
        # Its base gives one piece at a time, so that every token's version is known; the resuming is done here.
        self._resumes = type(engines).generate is FullyAsyncLLMServerClient.generate and _may_resume(engines.config)
        self._generate_piece = LLMServerClient.generate if self._resumes else type(engines).generate
        self._runner: web.AppRunner | None = None

    async def start(self, host: str) -> str:
        """Listen on a free port of ``host``; returns the URL to register."""
        secret = secrets.token_urlsafe(12)
        app = web.Application(client_max_size=LARGEST_REQUEST)
        app.add_routes(
            [
                web.get(f"/{secret}/health", self._well),
                web.get(f"/{secret}/v1/models", self._models),
                web.get(f"/{secret}/server_info", self._info),
                web.post(f"/{secret}/inference/v1/generate", self._generate),
                web.post(f"/{secret}/inference/v1/abort_requests", self._well),
            ]
        )
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, 0, backlog=1024).start()
        return f"http://{host}:{self._runner.addresses[0][1]}/{secret}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def sample(self, session: str, ask: Ask) -> Reply:
        """One reply, whole; an interrupted one is gone on with as long as verl allows it."""
        wanted = int(ask.sampling_params["max_tokens"])
        stops = self._ends | set(ask.sampling_params.get("stop_token_ids", ()))
        reply = Reply()
        while True:
            sampling = _verls(ask.sampling_params, wanted - len(reply.ids))
            piece = await self._generate_piece(
                self._engines,
                session,
                prompt_ids=[*ask.token_ids, *reply.ids],
                sampling_params=sampling,
                **({"priority": ask.priority} if ask.priority else {}),
            )
            reply.add([int(token) for token in piece.token_ids], list(piece.log_probs or ()), _version(piece))
            aborted = piece.stop_reason in ("abort", "aborted")
            if len(reply.ids) >= wanted:
                reply.finish = "stop" if reply.ids[-1] in stops else "length"
            elif aborted and self._resumes:
                await asyncio.sleep(RESUME_AFTER_S)
                continue
            else:
                reply.finish = "abort" if aborted else "length" if piece.stop_reason == "length" else "stop"
            return reply

    async def _generate(self, request: web.Request) -> web.Response:
        try:
            ask = msgspec.json.decode(await request.read(), type=Ask)
        except msgspec.MsgspecError as error:
            return _json({"error": {"message": str(error)}}, 400)
        try:
            reply = await self.sample(request.headers.get("x-session-id") or ask.request_id, ask)
        except ValueError as error:  # what the engine says of a prompt that it cannot take
            return _json({"error": {"message": str(error)}}, 400)
        except Exception as error:
            return _json({"error": {"message": f"verl's engines: {type(error).__name__}: {error}"}}, 503)
        pairs = zip(reply.ids, reply.logprobs, strict=False)  # what is missing is for the rollout server to refuse
        choice = {
            "index": 0,
            "token_ids": reply.ids,
            "finish_reason": reply.finish,
            "stop_reason": None,
            "weight_versions": [{"version": version, "start": a, "end": b} for version, a, b in reply.spans],
            "logprobs": {"content": [{"token_id": token, "logprob": logprob} for token, logprob in pairs]},
        }
        return _json({"prompt_token_ids": ask.token_ids, "choices": [choice]})

    async def _models(self, _: web.Request) -> web.Response:
        card = {"id": self._model, "owned_by": "vllm", "max_model_len": self._max_context}
        return _json({"object": "list", "data": [card]})

    async def _info(self, _: web.Request) -> web.Response:
        return _json({"vllm_config": {"model_config": {"logprobs_mode": self._logprobs_mode}}})

    async def _well(self, _: web.Request) -> web.Response:
        return _json({})


def _may_resume(config: Any) -> bool:
    """verl's own rule: without partial rollouts an aborted sample is dropped."""
    asynchronous = getattr(config, "async_training", None)
    return asynchronous is None or bool(asynchronous.partial_rollout)


def _verls(asked: dict[str, Any], max_tokens: int) -> dict[str, Any]:
    """Names and signs as verl's engines take them; a new dict each time, since they change it."""
    named = ("temperature", "top_p", "min_p", "repetition_penalty", "stop_token_ids", "seed")
    sampling = {name: asked[name] for name in named if name in asked}
    return {**sampling, "top_k": asked.get("top_k") or -1, "logprobs": True, "max_tokens": max_tokens}


def _version(piece: Any) -> str:
    """The step whose weights sampled the piece: where it spans several, the oldest."""
    fields = piece.extra_fields
    step = fields.get("min_global_steps", fields.get("global_steps"))
    return "default" if step is None else str(step)


def _json(content: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), status=status, content_type="application/json")
