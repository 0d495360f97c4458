"""A whole server with a scripted policy, for the tests of a task package.

::

    def test_a_right_answer():
        with Lab(["The capital is Paris."]) as lab:
            result = lab.rollout({"country": "France", "capital": "Paris"}, domain="capitals")
        assert result.reward == 1.0

Everything but the choice of words is what runs in production: HTTP, stages, sandbox, tools, grader, tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import msgspec

from prorl.api.records import HandlerRecord, SettingsRecord
from prorl.client import BlockingClient
from prorl.pipeline.tables import overlay
from prorl.plugins import Registry, discover
from prorl.server.serve import RunningServer
from prorl.server.settings import parse_settings
from prorl.testing.scripted import Policy, ScriptedEngine, ScriptedRequest
from prorl.wire.jobs import JobRequest
from prorl.wire.results import RolloutResult

NOTHING_LEFT = "I have nothing to add."


class Lab:
    """``policy``: the replies in order (the same for every rollout), or a function of the request.

    ``handlers`` and ``tables`` are added to what is installed, for what no entry point names yet. ``settings`` is a
    document like prorl.toml (a handler's ``[handlers.<name>]``, a plugin's own table); the port is a free one unless it
    says otherwise. ``max_context`` is the engine's, in tokens of its tokenizer, which are mostly single bytes.
    """

    def __init__(
        self,
        policy: Sequence[str] | Policy,
        *,
        handlers: Sequence[HandlerRecord] = (),
        tables: Sequence[SettingsRecord] = (),
        settings: dict[str, Any] | None = None,
        max_context: int = 4096,
    ) -> None:
        self.engine = ScriptedEngine(policy if callable(policy) else _in_order(policy), max_context=max_context)
        self._settings = parse_settings(overlay({"server": {"port": 0}}, settings or {}))
        self._handlers = handlers
        self._tables = tables
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.engine)
            server = stack.enter_context(RunningServer(self._settings, self._registry()))
            self.url = server.url
            self.client = stack.enter_context(BlockingClient(self.url))
            self.client.add_llm_server(self.engine.url)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def rollout(self, instance: dict[str, Any], *, domain: str | None = None, **request: Any) -> RolloutResult:
        """One rollout, to its end. ``request`` holds other fields of :class:`~prorl.wire.JobRequest`."""
        body = {"instance": instance, **({} if domain is None else {"domain": domain}), **request}
        return self.client.process(msgspec.convert(body, JobRequest))

    def _registry(self) -> Registry:
        registry = discover()
        registry.handlers.update({record.name: record for record in self._handlers})
        registry.settings.update({record.name: record for record in self._tables})
        return registry


def _in_order(replies: Sequence[str]) -> Policy:
    def policy(request: ScriptedRequest) -> str:
        return replies[request.call] if request.call < len(replies) else NOTHING_LEFT

    return policy
