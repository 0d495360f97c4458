"""An engine with a fault that can be switched on: what no check must let through, and no pool may hang on."""

from __future__ import annotations

import asyncio
from typing import Literal, get_args

from prorl.testing.httpd import Request, Response, error_response, json_response
from prorl.testing.scripted import Played, ScriptedEngine

Fault = Literal[
    "wrong_echo",
    "short_prompt",
    "missing_logprob",
    "null_logprob",
    "minus_9999",
    "nan",
    "infinite",
    "above_zero",
    "logprob_of_another",
    "extra_ids",
    "out_of_vocabulary",
    "string_id",
    "float_id",
    "version_gap",
    "version_short",
    "empty",
    "unknown_finish",
    "not_json",
    "another_form",
    "half_closed",
    "no_answer",
    "error_400",
    "error_401",
    "error_429",
    "error_500",
    "error_503",
    "redirect",
    "hang",
]
FAULTS: tuple[Fault, ...] = get_args(Fault)
# JSON has no word for them, so they are written over a number that stands for them.
_STAND_IN = -7.0625
_UNWRITABLE = {"nan": b"NaN", "infinite": b"-1e999"}


class FaultyEngine(ScriptedEngine):
    """``engine.fault = "nan"`` spoils every reply from then on; ``None`` is a well-behaved engine. Health checks go on
    being answered: these are faults that a health check does not see. It can be had in any dialect (``speech``)."""

    fault: Fault | None = None

    async def handle(self, request: Request) -> Response | None:
        if self.fault is None or request.path not in self.speech.replies:
            return await super().handle(request)
        match self.fault:
            case "no_answer":
                return None
            case "error_400" | "error_401" | "error_429" | "error_500" | "error_503":
                return error_response(int(self.fault[-3:]), "as ordered")
            case "redirect":
                return Response(status=307, location=f"{self.url}/elsewhere")
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
        return _written_wrong(response, self.fault)

    def alter(self, played: Played) -> Played:
        if self.fault is not None:
            _spoil(played, self.fault)
        return played


def _written_wrong(response: Response, fault: Fault) -> Response:
    match fault:
        case "half_closed":
            return Response(body=response.body[: len(response.body) // 2], declared=len(response.body))
        case "not_json":
            return Response(body=b"<html>a proxy's own opinion</html>")
        case "another_form":
            return json_response({"object": "list", "data": []})
        case "nan" | "infinite":
            return Response(body=response.body.replace(str(_STAND_IN).encode(), _UNWRITABLE[fault]))
    return response


def _spoil(played: Played, fault: Fault) -> None:  # noqa: PLR0912 - a table of faults
    ids = played.token_ids
    match fault:
        case "wrong_echo":
            played.echo[-1] += 1
        case "short_prompt":
            played.read -= 1
        case "missing_logprob":
            played.logprobs.pop()
            played.named.pop()
        case "null_logprob":
            played.logprobs[0] = None
        case "minus_9999":
            played.logprobs[0] = -9999.0
        case "nan" | "infinite":
            played.logprobs[0] = _STAND_IN
        case "above_zero":
            played.logprobs[0] = 0.5
        case "logprob_of_another":
            played.named[0] += 1
        case "extra_ids":
            extra = 1000
            ids += [ids[0]] * extra
            played.named += [ids[0]] * extra
            played.logprobs += [0.0] * extra
            name, start, end = played.versions[-1]
            played.versions[-1] = (name, start, end + extra)
        case "out_of_vocabulary":
            ids[0] = played.named[0] = -1
        case "string_id":
            ids[0] = str(ids[0])
        case "float_id":
            ids[0] += 0.5
        case "version_gap":
            name, _, end = played.versions[-1]
            played.versions[-1] = (name, 1, end)
        case "version_short":
            name, start, end = played.versions[-1]
            played.versions[-1] = (name, start, end - 1)
        case "empty":
            for each in (ids, played.named, played.logprobs, played.versions):
                each.clear()
        case "unknown_finish":
            played.finish = "mood"
