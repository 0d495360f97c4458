"""llama.cpp's server as the scripted engine speaks it."""

from __future__ import annotations

from typing import Any

from prorl.testing.httpd import Response, json_response
from prorl.testing.scripted.script import Asked, Played
from prorl.testing.scripted.speech import Speaker

_FINISHES = {"stop": "eos", "length": "limit"}


class LlamaCppSpeech:
    """It never looks for a logprob again: a reply that lacks one lacks it for good."""

    replies = ("/completion",)

    async def asked(self, engine: Speaker, path: str, body: dict[str, Any]) -> Asked | Response:
        prompt = body["prompt"]
        if len(prompt) >= engine.max_context:
            message = f"the request exceeds the available context size ({engine.max_context})"
            return json_response({"error": {"code": 400, "message": message, "type": "exceed_context_size_error"}}, 400)
        return Asked(prompt_ids=prompt, max_tokens=body["n_predict"], stop_token_ids=[], request_id="", sampling=body)

    async def said(self, engine: Speaker, asked: Asked, played: Played) -> Response:
        pairs = zip(played.named, played.logprobs, strict=True)
        return json_response(
            {
                "content": "",
                "tokens": played.token_ids,
                "stop_type": _FINISHES.get(played.finish, played.finish),
                "tokens_evaluated": played.read,
                "tokens_predicted": len(played.token_ids),
                "completion_probabilities": [{"id": token, "logprob": logprob} for token, logprob in pairs],
                "timings": {"cache_n": 0},
            }
        )

    async def other(self, engine: Speaker, path: str, body: dict[str, Any]) -> Response:
        match path:
            case "/health":
                return json_response({"status": "ok"})
            case "/v1/models":
                card = {"id": engine.model, "owned_by": "llamacpp", "meta": {"n_vocab": engine.voice.vocab_size}}
                return json_response({"object": "list", "data": [card]})
            case "/props":
                return json_response(
                    {
                        "default_generation_settings": {"n_ctx": engine.max_context},
                        "chat_template": engine.voice.chat_template,
                        "eos_token": engine.voice.special_tokens.get("eos_token", ""),
                        "build_info": "b9999-scripted",
                    }
                )
            case "/tokenize":
                content = body.get("content", "")
                return json_response(
                    {"tokens": await engine.voice.encode(content, special=body.get("parse_special", True))}
                )
            case "/detokenize":
                return json_response({"content": await engine.voice.decode(body["tokens"])})
        return json_response({"error": {"code": 404, "message": "File Not Found"}}, 404)
