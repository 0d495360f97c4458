"""Asking the judge: an OpenAI-compatible server, with a time-out and retries of its own.

Every failure is a ``GraderFault``: the sample is masked. Nothing that goes wrong here is a verdict.
"""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import dataclass

import httpx
import msgspec

from prorl.api import GraderFault
from prorl_stem.judge.prompt import MAX_ANSWER_CHARS, messages, new_nonce, read_verdict
from prorl_stem.search.backend import SearchFault
from prorl_stem.search.http import read_at_most, retry_after
from prorl_stem.settings import JudgeSettings

MAX_REPLY_BYTES = 4_000_000
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0


class Said(msgspec.Struct):
    content: str | None = None


class Choice(msgspec.Struct):
    message: Said
    finish_reason: str | None = None


class Completion(msgspec.Struct):
    choices: list[Choice]


@dataclass(frozen=True)
class Opinion:
    same: bool
    reason: str


class _NoReply(Exception):  # noqa: N818 - decides only whether to ask again
    def __init__(self, why: str, code: str, *, again: bool = True, after: float | None = None) -> None:
        super().__init__(why)
        self.code = code
        self.again = again
        self.after = after


class Judge:
    """For all jobs of a server. Use it on one event loop, and close it."""

    def __init__(self, settings: JudgeSettings) -> None:
        self._settings = settings
        self._places = asyncio.Semaphore(settings.concurrency)
        self._client: httpx.AsyncClient | None = None

    async def compare(
        self, question: str, gold: str, answer: str, *, both_orders: bool, timeout_s: float | None = None
    ) -> Opinion:
        """Raises ``GraderFault``: ``judge_down``, ``judge_refused``, ``judge_garbled``, ``judge_gold``."""
        if len(gold) > MAX_ANSWER_CHARS:
            raise GraderFault(f"the gold has more than {MAX_ANSWER_CHARS} characters", code="judge_gold")
        if len(answer) > MAX_ANSWER_CHARS:
            return Opinion(False, f"the answer has more than {MAX_ANSWER_CHARS} characters")
        orders = [(gold, answer), (answer, gold)] if both_orders else [(gold, answer)]
        verdicts = [await self._verdict(question, *order, timeout_s or self._settings.timeout_s) for order in orders]
        if all(verdicts):
            return Opinion(True, "the same, says the judge")
        if any(verdicts):
            return Opinion(False, "the judge changes its mind with the order")
        return Opinion(False, "another answer, says the judge")

    async def _verdict(self, question: str, one: str, other: str, timeout_s: float) -> bool:
        wait = FIRST_WAIT_S
        for left in range(self._settings.retries, -1, -1):
            nonce = new_nonce()
            try:
                async with self._places:
                    reply = await self._ask(messages(question, one, other, nonce), timeout_s)
                verdict = read_verdict(reply, nonce)
                if verdict is not None:
                    return verdict
                raise _NoReply("its reply holds no verdict", "judge_garbled")  # noqa: TRY301 - one place asks again
            except _NoReply as problem:
                if not left or not problem.again or (problem.after or 0.0) > LONGEST_WAIT_S:
                    raise GraderFault(f"the judge gave no verdict: {problem}", code=problem.code) from None
                await asyncio.sleep(wait * random.uniform(0.5, 1.5) if problem.after is None else problem.after)  # noqa: S311
                wait = min(2 * wait, LONGEST_WAIT_S)
        raise AssertionError("the last attempt returns or raises")

    async def _ask(self, conversation: list[dict[str, str]], timeout_s: float) -> str:
        settings = self._settings
        headers = {}
        if settings.api_key_env is not None:
            key = os.environ.get(settings.api_key_env, "").strip()
            if not key or not key.isascii() or not key.isprintable():
                raise _NoReply(f"${settings.api_key_env} holds no key", "judge_refused", again=False)
            headers["Authorization"] = f"Bearer {key}"
        body = {
            "model": settings.model,
            "messages": conversation,
            "max_tokens": settings.max_tokens,
            "temperature": 0.0,
        }
        if self._client is None:
            self._client = httpx.AsyncClient()
        try:
            async with asyncio.timeout(timeout_s):
                request = self._client.build_request(
                    "POST",
                    f"{settings.url.rstrip('/')}/chat/completions",
                    json=body,
                    headers=headers,
                    timeout=timeout_s,
                )
                response = await self._client.send(request, stream=True)
                content = await read_at_most(response, MAX_REPLY_BYTES)
        except (TimeoutError, httpx.TimeoutException):
            raise _NoReply(f"it did not answer within {timeout_s:g} s", "judge_down") from None
        except (httpx.HTTPError, SearchFault) as error:
            raise _NoReply(f"it cannot be reached ({type(error).__name__})", "judge_down") from None
        return self._text(response, content)

    def _text(self, response: httpx.Response, content: bytes) -> str:
        status = response.status_code
        if status != 200:
            again = status in (408, 409, 425, 429) or status >= 500
            after = retry_after(response.headers.get("retry-after"))
            raise _NoReply(
                f"it answers HTTP {status}", "judge_down" if again else "judge_refused", again=again, after=after
            )
        try:
            completion = msgspec.json.decode(content, type=Completion)
            choice = completion.choices[0]
        except (msgspec.DecodeError, msgspec.ValidationError, IndexError, RecursionError):
            raise _NoReply("its reply cannot be read", "judge_garbled") from None
        if choice.finish_reason not in (None, "stop", "eos"):
            raise _NoReply(f"its reply ended early ({choice.finish_reason[:40]!r})", "judge_garbled")
        return choice.message.content or ""

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
