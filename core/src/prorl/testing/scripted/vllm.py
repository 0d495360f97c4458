"""vLLM as the scripted engine speaks it: the forms recorded from vLLM 0.32."""

from __future__ import annotations

from typing import Any

from prorl.testing.httpd import Response, error_response, json_response
from prorl.testing.scripted.render import render
from prorl.testing.scripted.script import Asked, Played
from prorl.testing.scripted.speech import Speaker

_GENERATE, _COMPLETIONS, _ABORT = "/inference/v1/generate", "/v1/completions", "/inference/v1/abort_requests"


class VllmSpeech:
    """``generate=False`` leaves only ``/v1/completions``."""

    replies = (_GENERATE, _COMPLETIONS)

    def __init__(self, *, generate: bool = True) -> None:
        self._generate = generate

    async def asked(self, engine: Speaker, path: str, body: dict[str, Any]) -> Asked | Response:
        if path == _GENERATE and not self._generate:
            return error_response(403, "Scale-out endpoints are disabled.")
        if body["model"] != engine.model:
            return error_response(404, f"The model `{body['model']}` does not exist. Valid aliases: {engine.model}.")
        prompt, sampling = (body["token_ids"], body["sampling_params"]) if path == _GENERATE else (body["prompt"], body)
        if len(prompt) >= engine.max_context:
            return error_response(
                400, f"The decoder prompt (length {len(prompt)}) is longer than {engine.max_context}."
            )
        return Asked(
            prompt_ids=prompt,
            max_tokens=sampling["max_tokens"],
            stop_token_ids=sampling["stop_token_ids"],
            request_id=body["request_id"],
            sampling=sampling,
            detail=path,
        )

    async def said(self, engine: Speaker, asked: Asked, played: Played) -> Response:
        return _generated(asked, played) if asked.detail == _GENERATE else _completed(asked, played)

    async def other(self, engine: Speaker, path: str, body: dict[str, Any]) -> Response:
        match path:
            case "/inference/v1/abort_requests" if self._generate:
                engine.abort_requests += body["request_ids"]
                return Response()
            case "/inference/v1/abort_requests":
                return error_response(403, "Scale-out endpoints are disabled.")
            case "/tokenize":
                chat = "messages" in body
                ids = await render(engine, body) if chat else await engine.voice.encode(body["prompt"])
                return json_response({"count": len(ids), "max_model_len": engine.max_context, "tokens": ids})
            case "/detokenize":
                return json_response({"prompt": await engine.voice.decode(body["tokens"])})
        return _described(engine, path)


def _described(engine: Speaker, path: str) -> Response:
    match path:
        case "/health":
            return Response()
        case "/v1/models":
            card = {"id": engine.model, "owned_by": "vllm", "max_model_len": engine.max_context}
            return json_response({"object": "list", "data": [card]})
        case "/version":
            return json_response({"version": "0.32.0"})
        case "/metrics":
            return Response(body=f"process_start_time_seconds {engine.incarnation}\n".encode())
        case "/tokenizer_info":
            template = {"chat_template": engine.voice.chat_template, **engine.voice.special_tokens}
            return json_response({"tokenizer_class": "PreTrainedTokenizerFast", **template})
    return json_response({"detail": "Not Found"}, 404)


def _generated(asked: Asked, played: Played) -> Response:
    pairs = zip(played.named, played.logprobs, strict=True)
    choice = {
        "index": 0,
        "finish_reason": played.finish,
        "stop_reason": played.stop_reason,
        "token_ids": played.token_ids,
        "weight_versions": [{"version": name, "start": start, "end": end} for name, start, end in played.versions],
        "logprobs": {"content": [{"token_id": token, "logprob": logprob, "rank": 1} for token, logprob in pairs]},
    }
    return json_response(
        {
            "request_id": f"generate-tokens-{asked.request_id}",
            "prompt_token_ids": played.echo,
            "choices": [choice],
            "usage": usage(played),
        }
    )


def _completed(asked: Asked, played: Played) -> Response:
    choice = {
        "index": 0,
        "text": "",
        "finish_reason": played.finish,
        "stop_reason": played.stop_reason,
        "token_ids": played.token_ids,
        "prompt_token_ids": played.echo,
        "logprobs": {
            "token_logprobs": played.logprobs,
            "tokens": [f"token_id:{token}" for token in played.named],
        },
    }
    return json_response({"id": f"cmpl-{asked.request_id}", "choices": [choice], "usage": usage(played)})


def usage(played: Played) -> dict[str, Any]:
    prompt, reply = played.read, len(played.token_ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": reply,
        "total_tokens": prompt + reply,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
