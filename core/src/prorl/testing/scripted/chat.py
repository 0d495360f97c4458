"""``/v1/chat/completions`` as the scripted engine speaks it: vLLM's, NeMo RL's, or a plain one that tells no ids.

NeMo RL cuts what it has rendered after the last reply's end-of-sequence token and puts the ids it was given in front:
it counts such tokens, for templates shift the places by dropping earlier thinking.
"""

from __future__ import annotations

from typing import Any, Literal

from prorl.testing.httpd import Response, error_response, json_response
from prorl.testing.scripted.render import render
from prorl.testing.scripted.script import Asked, Played
from prorl.testing.scripted.speech import Speaker
from prorl.testing.scripted.vllm import usage

_EXTENSIONS = ("return_token_ids", "return_tokens_as_token_ids", "top_k", "min_p", "stop_token_ids")


class ChatSpeech:
    """``tells``: the ids with each reply (``vllm``); none, as a server that ignores what it does not know
    (``nothing``); or none and a refusal of everything that is not OpenAI's (``strict``)."""

    replies: tuple[str, ...] = ("/v1/chat/completions",)

    def __init__(self, *, tells: Literal["vllm", "nothing", "strict"] = "vllm", max_model_len: bool = True) -> None:
        self._tells = tells
        self._max_model_len = max_model_len
        self.bodies: list[dict[str, Any]] = []

    async def asked(self, engine: Speaker, path: str, body: dict[str, Any]) -> Asked | Response:
        self.bodies.append(body)
        if self._tells == "strict" and (unknown := [name for name in _EXTENSIONS if name in body]):
            return error_response(400, f"Unrecognized request argument supplied: {unknown[0]}")
        prompt = await self._prompt(engine, body)
        left = engine.max_context - len(prompt)
        wanted = body.get("max_tokens", max(left, 1))
        if left < wanted:
            return error_response(
                400,
                f"This model's maximum context length is {engine.max_context} tokens. However, you requested {wanted} "
                f"output tokens and your prompt contains {len(prompt)} input tokens.",
            )
        return Asked(
            prompt_ids=prompt,
            max_tokens=wanted,
            stop_token_ids=body.get("stop_token_ids", []),
            request_id="",
            sampling=body,
        )

    async def said(self, engine: Speaker, asked: Asked, played: Played) -> Response:
        ended = played.token_ids[-1:] == [engine.voice.end_of_turn]
        ids = [token for token in played.token_ids[: -1 if ended else None] if isinstance(token, int) and token >= 0]
        message: dict[str, Any] = {"role": "assistant", "content": await engine.voice.decode(ids)}
        choice = {"index": 0, "message": message, "finish_reason": played.finish}
        answer = {"id": "chatcmpl-1", "model": engine.model, "choices": [choice], "usage": usage(played)}
        if self._tells == "vllm":
            self._tell(answer, choice, played)
        return json_response(answer)

    async def other(self, engine: Speaker, path: str, body: dict[str, Any]) -> Response:
        if path == "/v1/models":
            length = {"max_model_len": engine.max_context} if self._max_model_len else {}
            return json_response({"object": "list", "data": [{"id": engine.model, "owned_by": "someone", **length}]})
        return json_response({"detail": "Not Found"}, 404)

    def _tell(self, answer: dict[str, Any], choice: dict[str, Any], played: Played) -> None:
        answer["prompt_token_ids"] = played.echo
        choice["token_ids"] = played.token_ids
        choice["logprobs"] = {"content": logprobs(played)}

    async def _prompt(self, engine: Speaker, body: dict[str, Any]) -> list[int]:
        return await render(engine, body)


class NemoRlSpeech(ChatSpeech):
    """``echoes``: recent versions put the ids into the message; older ones leave them in the logprobs' tokens, and the
    prompt unsaid."""

    def __init__(self, *, temperature: float = 1.0, top_p: float = 1.0, echoes: bool = True) -> None:
        super().__init__()
        self._sampling = (temperature, top_p)
        self._echoes = echoes

    async def asked(self, engine: Speaker, path: str, body: dict[str, Any]) -> Asked | Response:
        if (body["temperature"], body["top_p"]) != self._sampling:
            return Response(body=b"Internal Server Error", status=500)  # an assertion
        if body.get("top_logprobs") is None:
            return error_response(400, "`top_logprobs` must be set")
        return await super().asked(engine, path, body)

    async def other(self, engine: Speaker, path: str, body: dict[str, Any]) -> Response:
        if path != "/tokenize":
            return json_response({"detail": "Not Found"}, 404)
        ids = await self._prompt(engine, body) if "messages" in body else await engine.voice.encode(body["prompt"])
        return json_response({"count": len(ids), "max_model_len": engine.max_context, "tokens": ids})

    def _tell(self, answer: dict[str, Any], choice: dict[str, Any], played: Played) -> None:
        choice["logprobs"] = {"content": logprobs(played)}
        if self._echoes:
            choice["message"] |= {
                "prompt_token_ids": played.echo,
                "generation_token_ids": played.token_ids,
                "generation_log_probs": played.logprobs,
            }

    async def _prompt(self, engine: Speaker, body: dict[str, Any]) -> list[int]:
        rendered, prefix = await render(engine, body), body.get("required_prefix_token_ids")
        if not prefix:
            return rendered
        messages = body["messages"]
        last = max((place for place, each in enumerate(messages) if each["role"] == "assistant"), default=len(messages))
        upto = await render(engine, {**body, "messages": messages[: last + 1]}, generation_prompt=False)
        eos = engine.voice.end_of_turn
        ends = [place for place, token in enumerate(rendered) if token == eos]
        return [*(prefix[:-1] if prefix[-1] == eos else prefix), *rendered[ends[upto.count(eos) - 1] :]]


def logprobs(played: Played) -> list[dict[str, Any]]:
    pairs = zip(played.named, played.logprobs, strict=True)
    return [{"token": f"token_id:{token}", "logprob": logprob, "top_logprobs": []} for token, logprob in pairs]
