"""One job's door: who may come in, which stream a call goes on, and what it is answered.

The tree of conversations says where a call stands (:mod:`prorl.capture.trace`), the rule of retries whether there is a
reply for it already (:mod:`prorl.capture.samples`), and the streams bring a chat there (:mod:`prorl.capture.streams`).
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from prorl.api.errors import ContextOverflow, Fault, JobCancelled, ModelFault
from prorl.api.llm import Chat, Reply
from prorl.capture.samples import Sample, retried
from prorl.capture.streams import Place, Streams
from prorl.capture.talk import Answer, Asked, Called, Heard, Kind, Marks, Refusal, to_messages
from prorl.capture.trace import Prompt, Spoken, Trace

KEPT_REFUSALS = 8
NAMED_FIELDS = 32
COUNTED = (
    "conversations",
    "branches",
    "retries",
    "broken_calls",
    "context_overflows",
    "refused",
    "calls_beyond_limit",
)
ENDED = "this job has ended, or takes no more calls"


class Door:
    """Implements :class:`prorl.api.Capture`. ``chat(agent)`` makes a chat of the job; ``max_tokens`` is the job's own
    bound on a reply; ``listen`` makes the Unix socket; ``closed`` is called once, at the end."""

    def __init__(
        self,
        job_id: str,
        url: str,
        *,
        chat: Callable[[str], Chat],
        max_tokens: int,
        max_calls: int | None = None,
        listen: Callable[[Door], Awaitable[tuple[Path, Callable[[], Awaitable[None]]]]] | None = None,
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        self.job_id = job_id
        self.url = url
        self.key = f"prorl-{secrets.token_urlsafe(32)}"
        self.calls = 0
        self.fault: Fault | None = None
        self._chat = chat
        self._max_tokens = max_tokens
        self._max_calls = max_calls
        self._listen = listen
        self._on_close = closed
        self._closed = False
        self._trace: Trace[Place, Sample] = Trace()
        self._samples: set[asyncio.Task[Answer]] = set()
        self._answers: dict[str, Spoken[Place, Sample]] = {}
        self._counts: Counter[str] = Counter()
        self._streams = Streams(chat, self._counts)
        self._ignored: Counter[str] = Counter()
        self._refusals: deque[str] = deque(maxlen=KEPT_REFUSALS)
        self._socket: tuple[Path, Callable[[], Awaitable[None]]] | None = None
        self._opening = asyncio.Lock()
        self._exhausted = asyncio.Event()

    # --- what a handler sees ---------------------------------------------------------------------------------------

    def environment(self, origin: str | None = None) -> dict[str, str]:
        base = self.url if origin is None else f"{origin}/proxy/{quote(self.job_id)}"
        return {
            "OPENAI_BASE_URL": f"{base}/v1",
            "OPENAI_API_BASE": f"{base}/v1",
            "OPENAI_API_KEY": self.key,
            "ANTHROPIC_BASE_URL": base,
            "ANTHROPIC_API_KEY": self.key,
        }

    async def socket(self) -> Path:
        async with self._opening:
            if self._closed or self._listen is None:
                raise JobCancelled(ENDED if self._closed else "this server has no sockets for agents")
            if self._socket is None:
                self._socket = await self._listen(self)
            return self._socket[0]

    def metrics(self) -> dict[str, Any]:
        return {"calls": self.calls, **{name: self._counts[name] for name in COUNTED}, "ignored": dict(self._ignored)}

    def refusals(self) -> list[str]:
        return list(self._refusals)

    async def exhausted(self) -> None:
        await self._exhausted.wait()

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._on_close()
        for task in self._samples:
            task.cancel()
        if self._samples:
            await asyncio.wait(self._samples)
        async with self._opening:
            opened, self._socket = self._socket, None
        if opened is not None:
            await opened[1]()

    # --- what the HTTP side asks of it -----------------------------------------------------------------------------

    def admit(self, key: str | None) -> None:
        """Raises :class:`Refusal` for a wrong key."""
        if key is None or not hmac.compare_digest(key.encode(), self.key.encode()):
            what = "no API key was sent" if not key else "this is not the API key of this job"
            raise Refusal("unauthorized", f"{what}: the job's own is in OPENAI_API_KEY and ANTHROPIC_API_KEY")

    def turned_away(self, path: str, refusal: Refusal) -> None:
        self._counts["refused"] += 1
        self._refusals.append(f"{path}: {refusal.status} {refusal.message}")

    def ask(self, asked: Asked, marks: Marks) -> Sample:
        """The reply to this call: a new one, or the one that is there if it is a retry. Nothing is awaited, so two
        calls cannot both be the first. Raises :class:`Refusal`."""
        if self._closed:
            raise Refusal("unknown", ENDED)
        messages = self._whole(asked)
        if messages[-1].role == "assistant":
            why = "the last message is the assistant's: to go on from a prefix is not supported"
            raise Refusal("invalid", why, field="messages")
        prompt = self._trace.find(messages, asked.tools)
        if (known := retried(prompt.samples, marks)) is not None:
            self._counts["retries"] += 1
            known.keys |= {marks.idempotency_key} - {None}
            return known
        if self._max_calls is not None and self.calls >= self._max_calls:
            self._counts["calls_beyond_limit"] += 1
            self._exhausted.set()
            raise Refusal("forbidden", f"this job may make {self._max_calls} model calls", code="model_calls_exhausted")
        self.calls += 1
        self._count_ignored(asked.ignored)
        task = asyncio.create_task(self._sample(prompt, messages, asked, marks), name=f"capture {self.job_id}")
        self._samples.add(task)
        sample = Sample(marks, task)
        prompt.samples.append(sample)
        task.add_done_callback(partial(self._done, prompt, sample))
        return sample

    async def measure(self, asked: Asked) -> int:
        """How many tokens this conversation would have if it were rendered anew. What stands on a stream may have
        others: thinking that was left out of the client's copy, for one."""
        if self._closed:
            raise Refusal("unknown", ENDED)
        messages = self._whole(asked)
        return await self._chat("").measure(to_messages(messages, asked.tools, among=messages), asked.tools)

    def _done(self, prompt: Prompt[Place, Sample], sample: Sample, task: asyncio.Task[Answer]) -> None:
        """Who waits hears of a failure; that nobody does is no news. Calls that fail cost an agent nothing, so nothing
        is kept of them."""
        self._samples.discard(task)
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            prompt.samples.remove(sample)
            if not prompt.samples and (prompt.place is None or isinstance(error, ContextOverflow)):
                self._trace.forget(prompt)
                self._streams.forget(prompt)

    def _count_ignored(self, names: tuple[str, ...]) -> None:
        """By name, up to a number of names: they stand in the result."""
        for name in names:
            if name in self._ignored or len(self._ignored) < NAMED_FIELDS:
                self._ignored[name] += 1

    def _whole(self, asked: Asked) -> tuple[Heard, ...]:
        """The conversation with what an earlier answer stands for."""
        if asked.follows is None:
            messages = asked.messages
        else:
            spoken = self._answers.get(asked.follows)
            if spoken is None:
                raise Refusal("unknown", f"no response {asked.follows!r} in this job", field="previous_response_id")
            lead = [message for message in asked.messages if message.role == "system"]
            rest = [message for message in asked.messages if message.role != "system"]
            before = [message for message in spoken.conversation() if message.role != "system"]
            messages = (*lead, *before, *rest)
        if not messages:
            raise Refusal("invalid", "there are no messages", field="messages")
        return messages

    # --- sampling --------------------------------------------------------------------------------------------------

    async def _sample(
        self, prompt: Prompt[Place, Sample], messages: tuple[Heard, ...], asked: Asked, marks: Marks
    ) -> Answer:
        try:
            reply, place, before = await self._reply(prompt, messages, asked, marks)
        except BaseException as error:
            self.calls -= 1
            self._counts["context_overflows"] += isinstance(error, ContextOverflow)
            if isinstance(error, ModelFault) and not isinstance(error, ContextOverflow):
                self.fault = error
            raise
        self.fault = None
        answer = self._answer(reply, asked, before)
        message = Heard(role="assistant", text=answer.text, calls=answer.calls)
        spoken = self._trace.say(prompt, message, place)
        if "kept" in asked.wants:
            self._answers[answer.id] = spoken
        return answer

    async def _reply(
        self, prompt: Prompt[Place, Sample], messages: tuple[Heard, ...], asked: Asked, marks: Marks
    ) -> tuple[Reply, Place, int]:
        """A reply, the place behind it, and how many tokens it was sampled after."""
        line = await self._streams.stand_at(prompt, messages, asked, marks)
        try:
            before = line.chat.tokens
            limit = min(asked.max_tokens or self._max_tokens, self._max_tokens)
            reply = await line.chat.reply(max_tokens=limit)
            place = line.stand()
        finally:
            line.busy = False
        if reply.finish == "abort":
            raise ModelFault("the engine aborted the reply", code="aborted")
        return reply, place, before

    def _answer(self, reply: Reply, asked: Asked, prompt_tokens: int) -> Answer:
        """As the agent gets to see it. Calls that it did not ask for, or could not use, are text to it."""
        usable = [call for call in reply.tool_calls if call.error is None]
        self._counts["broken_calls"] += len(reply.tool_calls) - len(usable)
        as_calls = bool(usable) and bool(asked.tools) and "no_calls" not in asked.wants
        text = reply.answer
        if reply.tool_calls and not as_calls:
            text = reply.text.rpartition("</think>")[2].strip()
        calls = [
            Called(id=secrets.token_hex(12), name=call.name, arguments=msgspec.json.encode(call.arguments).decode())
            for call in (usable if as_calls else ())
        ]
        return Answer(
            id=secrets.token_hex(16),
            created=int(time.time()),
            text=text,
            reasoning=reply.reasoning,
            calls=tuple(calls),
            finish=reply.finish,
            prompt_tokens=prompt_tokens,
            tokens=reply.tokens,
        )


def refusal_of(error: BaseException) -> Refusal | None:
    """What the agent is told of a call that failed. What may go better next time is a 5xx: SDKs then try again.
    ``None``: an error of our own."""
    match error:
        case Refusal():
            return error
        case JobCancelled():
            return Refusal("unknown", ENDED)
        case ContextOverflow():
            # Agents and their libraries know a full context by these words.
            said = f"This model's maximum context length is exceeded: {error}"
            return Refusal("context", said, field="messages", code="context_length_exceeded")
        case Fault():
            kind: Kind = "unavailable" if isinstance(error, ModelFault) else "invalid"
            return Refusal(kind, str(error), code=error.code)
        case RecursionError():  # how deep is too deep depends on where it is looked at
            return Refusal("invalid", "tools or arguments of calls are nested too deeply")
    return None
