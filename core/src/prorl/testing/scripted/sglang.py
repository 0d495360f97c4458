"""SGLang as the scripted engine speaks it: the forms of its public source. It does not install on CPUs like CI's."""

from __future__ import annotations

from typing import Any

from prorl.testing.httpd import Response, error_response, json_response
from prorl.testing.scripted.script import Asked, Played
from prorl.testing.scripted.speech import Speaker


class SglangSpeech:
    """``recent=False``: no echoed prompt and no spans of versions."""

    replies = ("/generate",)

    def __init__(self, *, recent: bool = True) -> None:
        self._recent = recent

    async def asked(self, engine: Speaker, path: str, body: dict[str, Any]) -> Asked | Response:
        prompt, sampling = body["input_ids"], body["sampling_params"]
        if len(prompt) >= engine.max_context:
            return error_response(
                400,
                f"The input ({len(prompt)} tokens) is longer than the model's context length ({engine.max_context} "
                "tokens).",
            )
        return Asked(
            prompt_ids=prompt,
            max_tokens=sampling["max_new_tokens"],
            stop_token_ids=sampling["stop_token_ids"],
            request_id=body["rid"],
            sampling=sampling,
        )

    async def said(self, engine: Speaker, asked: Asked, played: Played) -> Response:
        reason: dict[str, Any] = {"type": played.finish}
        if played.finish == "stop":
            reason["matched"] = played.token_ids[-1] if played.token_ids else None
        elif played.finish == "length":
            reason["length"] = asked.max_tokens
        meta = {
            "id": asked.request_id,
            "finish_reason": reason,
            "prompt_tokens": played.read,
            "completion_tokens": len(played.token_ids),
            "cached_tokens": 0,
            "weight_version": engine.weight_version,
            "output_token_logprobs": [
                [logprob, token, None] for logprob, token in zip(played.logprobs, played.named, strict=True)
            ],
        }
        answer: dict[str, Any] = {"text": "", "output_ids": played.token_ids, "meta_info": meta}
        if self._recent:
            meta["weight_versions"] = [{"version": n, "start": start, "end": end} for n, start, end in played.versions]
            answer["prompt_token_ids"] = played.echo
        return json_response(answer)

    async def other(self, engine: Speaker, path: str, body: dict[str, Any]) -> Response:
        match path:
            case "/abort_request":
                engine.abort_requests.append(body["rid"])
                return Response()
            case "/tokenize" if isinstance(body.get("prompt"), str):
                ids = await engine.voice.encode(body["prompt"])
                return json_response({"tokens": ids, "count": len(ids), "max_model_len": 131072})
            case "/tokenize":
                return json_response({"object": "error", "message": "prompt: Field required"}, 400)
        return _described(engine, path)


def _described(engine: Speaker, path: str) -> Response:
    match path:
        case "/health":
            return Response()
        case "/v1/models":
            card = {"id": engine.model, "owned_by": "sglang", "max_model_len": engine.max_context}
            return json_response({"object": "list", "data": [card]})
        case "/get_model_info" | "/model_info":
            info = {"model_path": engine.model, "is_generation": True, "weight_version": engine.weight_version}
            return json_response(info)
        case "/get_server_info" | "/server_info":
            info = {"version": "0.5.9", "random_seed": engine.incarnation, "max_total_num_tokens": 1 << 20}
            return json_response(info)
    return json_response({"detail": "Not Found"}, 404)
