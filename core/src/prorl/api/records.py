"""The typed records that hooks return. A record names something and says how to make it; it does no work itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from prorl.api.handler import AgentHandler
from prorl.api.llm import DialectFactory
from prorl.api.sandbox import SandboxRuntime
from prorl.api.tools import Tool
from prorl.wire.jobs import Budgets
from prorl.wire.sampling import SamplingParams

if TYPE_CHECKING:
    import click


class HandlerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A domain. ``domains`` are the exact names it serves (``name`` is one already), ``prefixes`` the beginnings of
    ``data_source`` values. ``settings`` is the Struct of ``[handlers.<name>]`` in prorl.toml and of a job's settings.
    ``budgets``: what a job of this domain may use where neither its request nor ``[pipeline.budgets]`` says.
    ``needs``: ``prorl doctor`` calls it: raises a ``ProrlError`` that says what this machine lacks and how to get it.
    It looks, and fetches nothing.
    """

    name: str
    factory: Callable[[], AgentHandler]
    summary: str
    domains: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    settings: type[msgspec.Struct] | None = None
    budgets: Budgets = Budgets()
    needs: Callable[[], None] | None = None


class ToolRecord(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    factory: Callable[[], Tool]
    summary: str
    aliases: tuple[str, ...] = ()


class RuntimeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox runtime. Among those that work the highest ``preference`` is taken; below 0 only by name."""

    name: str
    factory: Callable[[], SandboxRuntime]
    summary: str
    preference: int = 0


class DialectRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's HTTP. Detection asks dialects in the order of ``preference``, highest first."""

    name: str
    factory: DialectFactory
    summary: str
    preference: int = 0


class SettingsRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A table of prorl.toml, ``[<name>]``, that is the server's owner's alone: no request changes any of it. Checked
    against ``type`` at startup; read by ``job.services.table(type)`` and, in a tool, ``context.table(type)``.

    A field without a default makes the table one that every server must have.
    """

    name: str
    type: type[msgspec.Struct]
    summary: str


class CommandRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A subcommand of ``prorl``. ``load`` imports and returns the click command, so listing costs no import."""

    name: str
    load: Callable[[], click.Command]
    summary: str


class DemoModel(msgspec.Struct, frozen=True, kw_only=True):
    """A small model for one demo, under llama.cpp in the process of ``prorl demo``. ``gguf`` is its file, ``tokenizer``
    a folder with ``tokenizer.json`` and chat template. ``settings`` are its jobs', ``n_ctx`` is the context in tokens.
    """

    name: str
    gguf: Path
    tokenizer: Path
    summary: str
    sampling: SamplingParams = SamplingParams()
    settings: dict[str, Any] = {}
    n_ctx: int = 2048


class DemoRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What ``prorl demo`` shows of a domain: instances, and who can solve them: a script, a model of its own, or both.

    ``script(row, turn)`` is what a perfect model would write in turn 0, 1, ... for that row (tool calls included), or
    ``None`` when it has nothing more to say. It is played token for token by an engine over HTTP, like any model.
    A row is told by a text of more than 20 characters, of its own, that stands in the prompt.
    ``ready``, for instances that need more than their package (a download), gets it, or raises a ``ProrlError`` that
    says why not: the demo is then left out.
    """

    name: str
    domain: str
    rows: tuple[dict[str, Any], ...]
    summary: str
    script: Callable[[dict[str, Any], int], str | None] | None = None
    model: DemoModel | None = None
    ready: Callable[[], None] | None = None


Record = HandlerRecord | ToolRecord | RuntimeRecord | DialectRecord | SettingsRecord | CommandRecord | DemoRecord
