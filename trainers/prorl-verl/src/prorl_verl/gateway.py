"""verl's engines as an LLM server: token ids in, token ids out, over verl's own client.

A rollout server could call verl's engines by their addresses, but would then bypass what verl's client does: admission
while weights are synchronised, going on after an abort, least-loaded and sticky routing, versions. So the worker hosts
this small server. It speaks vLLM's ``/inference/v1/generate``, under a path that nobody guesses.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Collection
from typing import Any

import msgspec
from aiohttp import web
from omegaconf import OmegaConf
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient

LARGEST_REQUEST = 64 << 20
RESUME_AFTER_S = 1.0  # verl's own pause before it goes on after an abort
_VERLS_SAMPLING = ("temperature", "top_p", "min_p", "repetition_penalty", "stop_token_ids", "seed")


class Ask(msgspec.Struct):
    token_ids: list[int]
    request_id: str
    sampling_params: dict[str, Any]


class Gateway:
    """``engines`` is verl's ``LLMServerClient``; ``ends`` are ids that end a reply beside those a request names."""

    def __init__(self, engines: Any, ends: Collection[int]) -> None:
        self._engines = engines
        self._ends = frozenset(ends)
        rollout, model = engines.config.actor_rollout_ref.rollout, engines.config.actor_rollout_ref.model
        max_context = rollout.get("max_model_len") or rollout.prompt_length + rollout.response_length
        card = {"id": model.path, "owned_by": "vllm", "max_model_len": max_context}
        logprobs = {"logprobs_mode": rollout.get("logprobs_mode", "processed_logprobs")}
        self._told = {
            "health": {},
            "v1/models": {"object": "list", "data": [card]},
            "server_info": {"vllm_config": {"model_config": logprobs}},
            "inference/v1/abort_requests": {},  # who wants a request to end hangs up
        }
        # verl's resuming client joins the pieces of an interrupted reply and keeps only the lowest and highest version.
        # Its base gives one piece at a time, so that every token's version is known; the resuming is done here, unless
        # verl is told to drop what was interrupted.
        self._resumes = type(engines).generate is FullyAsyncLLMServerClient.generate and bool(
            OmegaConf.select(engines.config, "async_training.partial_rollout", default=True)
        )
        self._generate_piece = LLMServerClient.generate if self._resumes else type(engines).generate

    @contextlib.asynccontextmanager
    async def at(self, host: str) -> AsyncIterator[str]:
        """Listen on a free port of ``host``; gives the URL to register."""
        secret = f"/{secrets.token_urlsafe(12)}"
        app = web.Application(client_max_size=LARGEST_REQUEST)
        app.router.add_post(f"{secret}/inference/v1/generate", self._generate)
        app.router.add_route("*", f"{secret}/{{path:.+}}", self._tell)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, 0, backlog=1024).start()
            yield f"http://{host}:{runner.addresses[0][1]}{secret}"
        finally:
            await runner.cleanup()

    async def sample(self, session: str, ask: Ask) -> dict[str, Any]:
        """One reply, whole, as vLLM words it; an interrupted one is gone on with as long as verl allows it."""
        asked = ask.sampling_params
        wanted, ends = int(asked["max_tokens"]), self._ends | set(asked.get("stop_token_ids", ()))
        ids: list[int] = []
        logprobs: list[dict[str, Any]] = []
        versions: list[dict[str, Any]] = []
        while True:
            start = len(ids)
            # A new dict each time, since verl's engines change it.
            sampling = {name: asked[name] for name in _VERLS_SAMPLING if name in asked}
            sampling |= {"top_k": asked.get("top_k") or -1, "logprobs": True, "max_tokens": wanted - start}
            prompt = [*ask.token_ids, *ids]
            piece = await self._generate_piece(self._engines, session, prompt_ids=prompt, sampling_params=sampling)
            ids += map(int, piece.token_ids)
            if len(ids) > start:
                step = piece.extra_fields.get("min_global_steps", piece.extra_fields.get("global_steps"))
                version = "default" if step is None else str(step)
                versions.append({"version": version, "start": start, "end": len(ids)})
            # What is missing is for the rollout server to refuse.
            pairs = zip(ids[start:], piece.log_probs or (), strict=False)
            logprobs += [{"token_id": token, "logprob": logprob} for token, logprob in pairs]
            interrupted = piece.stop_reason in ("abort", "aborted") and len(ids) < wanted
            if not (interrupted and self._resumes):
                break
            await asyncio.sleep(RESUME_AFTER_S)
        cut = ids[-1] not in ends if len(ids) >= wanted else piece.stop_reason == "length"
        return {
            "token_ids": ids,
            "finish_reason": "abort" if interrupted else "length" if cut else "stop",
            "weight_versions": versions,
            "logprobs": {"content": logprobs},
        }

    async def _generate(self, request: web.Request) -> web.Response:
        try:
            ask = msgspec.json.decode(await request.read(), type=Ask)
            reply = await self.sample(request.headers.get("x-session-id") or ask.request_id, ask)
        except ValueError as error:  # it is no request, or the engine says that it cannot take the prompt
            return _json({"error": {"message": str(error)}}, 400)
        except Exception as error:
            return _json({"error": {"message": f"verl's engines: {type(error).__name__}: {error}"}}, 503)
        return _json({"prompt_token_ids": ask.token_ids, "choices": [reply]})

    async def _tell(self, request: web.Request) -> web.Response:
        if (answer := self._told.get(request.match_info["path"])) is None:
            raise web.HTTPNotFound
        return _json(answer)


def _json(content: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), status=status, content_type="application/json")
