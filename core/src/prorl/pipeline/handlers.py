"""Handlers as the pipeline calls them: one object per handler, made when the server opens."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from typing import Any, Literal

from prorl.api.errors import ConfigError
from prorl.api.handler import AgentHandler
from prorl.api.records import HandlerRecord
from prorl.pipeline.errors import HandlerBroken

Method = Literal["init", "run", "eval", "init_exception", "run_exception", "eval_exception", "final_result"]
METHODS: tuple[Method, ...] = (
    "init",
    "run",
    "eval",
    "init_exception",
    "run_exception",
    "eval_exception",
    "final_result",
)

log = logging.getLogger("prorl.pipeline")


class BoundHandler:
    """A handler object and how each of its methods is called.

    ``inherited`` methods are the base class's own: they only hand on a dict and are called as they are; ``threaded``
    ones are plain ``def`` and get a thread.
    """

    def __init__(self, record: HandlerRecord, handler: AgentHandler, table: Mapping[str, Any]) -> None:
        self.record = record
        self.name = record.name
        self.handler = handler
        self.table = table
        self.grading_needs_runtime = bool(handler.grading_needs_runtime)
        self.grades_unfinished_runs = bool(handler.grades_unfinished_runs)
        self.methods = {name: getattr(handler, name) for name in METHODS}
        self.inherited = {name for name in METHODS if getattr(type(handler), name) is getattr(AgentHandler, name)}
        self.threaded = {name for name, method in self.methods.items() if not inspect.iscoroutinefunction(method)}
        self.module = type(handler).__module__


class Handlers:
    """Made by :meth:`make`; a handler whose factory fails is remembered with its reason."""

    def __init__(self) -> None:
        self._bound: dict[str, BoundHandler] = {}
        self._broken: dict[str, str] = {}

    @classmethod
    def make(cls, records: Mapping[str, HandlerRecord], tables: Mapping[str, Mapping[str, Any]]) -> Handlers:
        handlers = cls()
        for name, record in records.items():
            try:
                handler = record.factory()
                if not isinstance(handler, AgentHandler):
                    raise ConfigError(f"its factory made {type(handler).__name__}, not an AgentHandler")  # noqa: TRY301
            except (Exception, SystemExit) as error:
                log.exception("handler %s could not be made", name)
                handlers._broken[name] = f"{type(error).__name__}: {error}"
            else:
                handlers._bound[name] = BoundHandler(record, handler, tables.get(name, {}))
        return handlers

    def __iter__(self) -> Any:
        return iter(self._bound.values())

    def get(self, name: str) -> BoundHandler:
        """Raises :class:`HandlerBroken`."""
        bound = self._bound.get(name)
        if bound is None:
            raise HandlerBroken(name, self._broken.get(name, "it was not there when the server opened"))
        return bound
