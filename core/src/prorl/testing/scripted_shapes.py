"""vLLM's answers as the scripted engine writes them: the forms recorded from vLLM 0.32."""

from __future__ import annotations

from typing import Any

from prorl.testing.httpd import Response, json_response
from prorl.testing.script import Played, ScriptedRequest


def error(status: int, message: str) -> Response:
    return json_response({"error": {"message": message, "type": "Error", "param": None, "code": status}}, status)


def generated(asked: ScriptedRequest, played: Played) -> Response:
    """``/inference/v1/generate``."""
    pairs = zip(played.token_ids, played.logprobs, strict=True)
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
            "prompt_token_ids": asked.prompt_ids,
            "choices": [choice],
            "usage": _usage(asked, played),
        }
    )


def completed(asked: ScriptedRequest, played: Played) -> Response:
    """``/v1/completions``."""
    choice = {
        "index": 0,
        "text": "",
        "finish_reason": played.finish,
        "stop_reason": played.stop_reason,
        "token_ids": played.token_ids,
        "prompt_token_ids": asked.prompt_ids,
        "logprobs": {
            "token_logprobs": played.logprobs,
            "tokens": [f"token_id:{token}" for token in played.token_ids],
        },
    }
    return json_response({"id": f"cmpl-{asked.request_id}", "choices": [choice], "usage": _usage(asked, played)})


def _usage(asked: ScriptedRequest, played: Played) -> dict[str, Any]:
    prompt, reply = len(asked.prompt_ids), len(played.token_ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": reply,
        "total_tokens": prompt + reply,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
