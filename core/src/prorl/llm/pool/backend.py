"""One registered LLM server: what it is, how busy it is, and the calls that run on it.

A backend object lives from one registration to the next. When its address is registered again a new object takes its
place, with new counts and caches; calls that are under way end on the old one, and it closes after the last of them.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence
from contextlib import suppress

import httpx
import msgspec

from prorl.api.errors import ConfigError, ModelFault, boundary
from prorl.api.llm import Conversation, Dialect, EngineInfo, Generation, GenerationRequest, Tokenizer
from prorl.llm.pool.checks import check_reply, fit_context
from prorl.llm.pool.settings import PoolSettings
from prorl.llm.tokenizers.local import TokenizerShelf
from prorl.wire.backends import BackendSpec, BackendStatus
from prorl.wire.sampling import SamplingParams

log = logging.getLogger("prorl.llm")


class Backend:
    """``rank`` orders the heap: ``assigned`` plus the head start a late joiner got. ``reason`` says why it is aside."""

    def __init__(
        self,
        spec: BackendSpec,
        info: EngineInfo,
        dialect: Dialect,
        *,
        client: httpx.AsyncClient,
        policy_version: str,
        settings: PoolSettings,
        shelf: TokenizerShelf | None = None,
    ) -> None:
        self.spec = spec
        self.url = spec.url
        self.info = info if spec.max_context is None else _bounded(info, spec.max_context)
        self._described = info
        self.dialect = dialect
        self.policy_version = policy_version
        self.healthy = True
        self.reason: str | None = None
        self.suspect = asyncio.Event()
        self.rank = self.assigned = self.in_flight = self.calls = self.failures = 0
        self.slots = asyncio.Semaphore(settings.concurrency)
        self._client = client
        self._shelf = shelf or TokenizerShelf()
        self._running: set[asyncio.Task[Generation]] = set()
        self._aborts: set[asyncio.Task[None]] = set()
        self._retired = self._deaf = False
        self._tokenizer: asyncio.Task[Tokenizer] | None = None

    @property
    def closed(self) -> bool:
        """Wholly: a client says so as soon as it begins to close, with its connections still open."""
        return self._client.is_closed and not self._aborts

    def status(self) -> BackendStatus:
        return BackendStatus(
            url=self.url,
            dialect=self.info.dialect,
            model=self.info.model,
            policy_version=self.policy_version,
            healthy=self.healthy,
            assigned=self.assigned,
            in_flight=self.in_flight,
            calls=self.calls,
            failures=self.failures,
            reason=self.reason,
        )

    async def tokenizer(self) -> Tokenizer:
        """The registered tokenizer folder or hub name, else the engine's own over HTTP. Loaded once."""
        if self._tokenizer is None or (self._tokenizer.done() and self._tokenizer.exception() is not None):
            self._tokenizer = asyncio.ensure_future(self._load_tokenizer())
        return await asyncio.shield(self._tokenizer)

    async def _load_tokenizer(self) -> Tokenizer:
        if self.spec.tokenizer is None:
            return await self.dialect.tokenizer()
        return await self._shelf.load(self.spec.tokenizer)

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        session_id: str,
        priority: int,
        conversation: Conversation | None = None,
    ) -> Generation:
        """One attempt at one reply, checked. Raises ``ModelFault`` and ``ContextOverflow``; a cancelled call is
        aborted at the engine."""
        request = GenerationRequest(
            prompt_ids=prompt_ids,
            sampling=fit_context(prompt_ids, sampling, self.info),
            request_id=uuid.uuid4().hex,
            session_id=session_id,
            cache_salt=self.policy_version,  # keeps prefixes that older weights computed out of the cache
            priority=priority,
            conversation=conversation,
        )
        call = asyncio.ensure_future(self._ask(request))
        self._running.add(call)
        self.calls += 1
        self.in_flight += 1
        try:
            await asyncio.wait({call})
        except asyncio.CancelledError:
            call.cancel()
            await asyncio.wait({call}, timeout=1.0)  # lets the connection close, which is what stops most engines
            self._abort(request.request_id)
            raise
        finally:
            self.in_flight -= 1
            self._running.discard(call)
            self._close_when_idle()
        if call.cancelled():
            self.failures += 1
            raise ModelFault(f"{self.url} was lost during the call: {self.reason}", code="unreachable")
        if call.exception() is not None:
            self.failures += 1
        return call.result()

    async def _ask(self, request: GenerationRequest) -> Generation:
        with boundary(ModelFault, f"{self.info.dialect} at {self.url}"):
            generation = await self.dialect.generate(request)
            return check_reply(generation, request.prompt_ids, request.sampling, self.info, url=self.url)

    def _abort(self, request_id: str) -> None:
        """Tell the engine, in the background: the one who cancelled must not wait for it."""
        task = asyncio.ensure_future(self._send_abort(request_id))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)
        task.add_done_callback(lambda _: self._close_when_idle())

    async def _send_abort(self, request_id: str) -> None:
        try:
            async with asyncio.timeout(10.0):
                await self.dialect.abort(request_id)
        except (ModelFault, TimeoutError) as error:
            level = logging.DEBUG if self._deaf else logging.WARNING  # one that went away would say so for every call
            log.log(level, "%s did not take the abort of a cancelled call: %s", self.url, error)
            self._deaf = True
        else:
            self._deaf = False

    async def check(self, timeout: float) -> None:
        """Ask whether the engine is well, and still the one that was registered. Raises ``ModelFault`` if not, with
        code ``changed_engine`` when it is another one by now."""
        try:
            async with asyncio.timeout(timeout):
                with boundary(ModelFault, f"the health check of {self.url}"):
                    await self.dialect.health()
        except TimeoutError:
            raise ModelFault(f"no answer to a health check in {timeout:g} s", code="unreachable") from None
        try:
            async with asyncio.timeout(timeout):
                described = await self.dialect.describe()
        except ConfigError as error:  # it serves another model
            raise ModelFault(str(error), code="changed_engine") from error
        except Exception as error:
            if self.healthy:
                return  # it is well; that it is too busy to describe itself proves nothing
            raise ModelFault(f"it does not describe itself: {type(error).__name__}: {error}") from error
        if described != self._described:
            raise ModelFault(
                "the engine has changed or restarted, so its weights are not known: register it again",
                code="changed_engine",
            )

    async def rest(self, seconds: float) -> None:
        """Until the time is up, or somebody found the engine wanting."""
        self.suspect.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.suspect.wait()

    def drop_calls(self) -> None:
        """The engine is dead or frozen: end what runs on it, so that it can run elsewhere."""
        for call in self._running:
            call.cancel()

    def retire(self) -> None:
        """No longer registered: close the connections once the last call has ended."""
        self._retired = True
        self._close_when_idle()

    def _close_when_idle(self) -> None:
        if self._retired and not self.in_flight and not self._aborts and not self._client.is_closed:
            closing = asyncio.ensure_future(self._client.aclose())
            self._aborts.add(closing)
            closing.add_done_callback(self._aborts.discard)

    async def close(self) -> None:
        """Now, whatever runs."""
        self.drop_calls()
        pending = {task for task in (*self._running, *self._aborts, self._tokenizer) if task is not None}
        if pending:
            _, late = await asyncio.wait(pending, timeout=1.0)
            for task in late:  # an abort that a busy engine does not take: its connection must close all the same
                task.cancel()
            await asyncio.wait(pending)
        await self._client.aclose()


def _bounded(info: EngineInfo, max_context: int) -> EngineInfo:
    return msgspec.structs.replace(info, max_context=min(max_context, info.max_context or max_context))
