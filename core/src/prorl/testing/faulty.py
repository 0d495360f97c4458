"""An engine with a fault that can be switched on: what no check must let through, and no pool may hang on."""

from __future__ import annotations

import asyncio
from typing import Any, Literal, get_args

import msgspec

from prorl.testing.httpd import Request, Response, json_response
from prorl.testing.scripted import ScriptedEngine

Fault = Literal[
    "wrong_echo",
    "missing_logprob",
    "null_logprob",
    "minus_9999",
    "nan",
    "above_zero",
    "logprob_of_another",
    "extra_ids",
    "out_of_vocabulary",
    "string_id",
    "float_id",
    "version_gap",
    "empty",
    "unknown_finish",
    "not_json",
    "half_closed",
    "no_answer",
    "error_400",
    "error_500",
    "hang",
]
FAULTS: tuple[Fault, ...] = get_args(Fault)


class FaultyEngine(ScriptedEngine):
    """``engine.fault = "nan"`` spoils every reply from then on; ``None`` is a well-behaved engine. Health checks go on
    being answered: these are faults that a health check does not see."""

    fault: Fault | None = None

    async def handle(self, request: Request) -> Response | None:  # noqa: PLR0911 - a table of faults
        if self.fault is None or request.path not in ("/inference/v1/generate", "/v1/completions"):
            return await super().handle(request)
        match self.fault:
            case "no_answer":
                return None
            case "error_400" | "error_500":
                return json_response({"error": {"message": "as ordered"}}, int(self.fault[-3:]))
            case "hang":
                self.in_flight += 1
                try:
                    await asyncio.Event().wait()
                finally:
                    self.in_flight -= 1
                    self.aborted += 1
        response = await super().handle(request)
        if response is None or response.status != 200:
            return response
        if self.fault == "half_closed":
            return Response(body=response.body[: len(response.body) // 2], declared=len(response.body))
        if self.fault == "not_json":
            return Response(body=b"<html>a proxy's own opinion</html>")
        if self.fault == "nan":
            return Response(body=response.body.replace(b'"logprob":0.0', b'"logprob":NaN', 1))
        answer = msgspec.json.decode(response.body)
        _spoil(answer, answer["choices"][0], self.fault)
        return json_response(answer)


def _spoil(answer: dict[str, Any], choice: dict[str, Any], fault: Fault) -> None:  # noqa: PLR0912 - a table of faults
    ids, content = choice["token_ids"], choice["logprobs"]["content"]
    match fault:
        case "wrong_echo":
            answer["prompt_token_ids"][-1] += 1
        case "missing_logprob":
            content.pop()
        case "null_logprob":
            content[0]["logprob"] = None
        case "minus_9999":
            content[0]["logprob"] = -9999.0
        case "above_zero":
            content[0]["logprob"] = 0.5
        case "logprob_of_another":
            content[0]["token_id"] += 1
        case "extra_ids":
            extra = [ids[0]] * 1000
            ids += extra
            content += [{"token_id": token, "logprob": 0.0} for token in extra]
            choice["weight_versions"][-1]["end"] += len(extra)
        case "out_of_vocabulary":
            ids[0] = content[0]["token_id"] = -1
        case "string_id":
            ids[0] = str(ids[0])
        case "float_id":
            ids[0] += 0.5
        case "version_gap":
            choice["weight_versions"][-1]["end"] -= 1
        case "empty":
            ids.clear()
            content.clear()
            choice["weight_versions"].clear()
        case "unknown_finish":
            choice["finish_reason"] = "mood"
