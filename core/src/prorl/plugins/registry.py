"""What the server reads: every working record by name, every plugin's report, and which handler a request means."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from prorl.api.errors import ConfigError
from prorl.api.names import named_in
from prorl.api.records import (
    CommandRecord,
    DemoRecord,
    DialectRecord,
    HandlerRecord,
    RuntimeRecord,
    SettingsRecord,
    ToolRecord,
)
from prorl.plugins.errors import HandlerUnavailable, UnknownDomain
from prorl.wire.service import PluginReport


@dataclass(kw_only=True)
class Registry:
    """Records in use by name, and the reports of all plugins.

    ``broken_handlers`` are handlers known by name that cannot be used (a conflict, or a plugin that failed after it had
    named them), each with the reports that say why.
    """

    reports: list[PluginReport] = field(default_factory=list)
    handlers: dict[str, HandlerRecord] = field(default_factory=dict)
    tools: dict[str, ToolRecord] = field(default_factory=dict)
    runtimes: dict[str, RuntimeRecord] = field(default_factory=dict)
    dialects: dict[str, DialectRecord] = field(default_factory=dict)
    settings: dict[str, SettingsRecord] = field(default_factory=dict)
    commands: dict[str, CommandRecord] = field(default_factory=dict)
    demos: dict[str, DemoRecord] = field(default_factory=dict)
    broken_handlers: list[tuple[HandlerRecord, list[PluginReport]]] = field(default_factory=list)

    @property
    def failed(self) -> list[PluginReport]:
        """The plugins that are not (wholly) in use."""
        return [report for report in self.reports if report.state != "active"]

    def domains(self) -> list[str]:
        """What ``route`` takes, sorted; prefixes are shown as ``amc*``."""
        known: set[str] = set()
        for record in self.handlers.values():
            known.update((record.name, *record.domains), (f"{prefix}*" for prefix in record.prefixes))
        return sorted(known)

    def route(self, domain: str | None, instance: Mapping[str, Any]) -> HandlerRecord:
        """The handler of a request: ``domain``, else ``instance["data_source"]``; exact names, then longest prefix.

        Raises :class:`UnknownDomain`, or :class:`HandlerUnavailable` when the plugin that serves it is broken. A broken
        plugin keeps its own names: they never fall through to another handler's prefix.
        """
        asked = domain if domain is not None else instance.get("data_source")
        if not isinstance(asked, str):
            raise UnknownDomain(None, self.domains(), self.failed)
        for record in self.handlers.values():
            if asked == record.name or asked in record.domains:
                return record
        if reports := self._broken(asked):
            raise HandlerUnavailable(asked, reports)
        candidates = [(record, prefix, None) for record in self.handlers.values() for prefix in record.prefixes]
        broken = [(record, prefix, why) for record, why in self.broken_handlers for prefix in record.prefixes]
        matching = [entry for entry in (*candidates, *broken) if asked.startswith(entry[1])]
        if not matching:
            raise UnknownDomain(asked, self.domains(), self.failed)
        record, prefix, why = max(matching, key=lambda entry: len(entry[1]))
        if why is not None:
            raise HandlerUnavailable(asked, _union(why for _, claimed, why in broken if claimed == prefix))
        return record

    def tool(self, name: str) -> ToolRecord:
        """By name or alias. Raises ``ConfigError`` for one that no plugin offers."""
        for record in self.tools.values():
            if name == record.name or name in record.aliases:
                return record
        known = ", ".join(sorted(self.tools)) or "none"
        raise ConfigError(f"no plugin offers the tool {name!r} (see `prorl plugins`); known: {known}")

    def check_names(self, settings: msgspec.Struct, *, where: str) -> None:
        """Whether what a handler's settings name is offered. Raises ``ConfigError`` that begins with ``where``."""
        for setting, kind, name in named_in(settings):
            try:
                self.tool(name) if kind == "tool" else self.runtime(name)
            except ConfigError as error:
                raise ConfigError(f"{where}: {setting}: {error}") from None

    def runtime(self, name: str) -> RuntimeRecord:
        """Raises ``ConfigError`` for one that no plugin offers."""
        if name not in self.runtimes:
            known = ", ".join(sorted(self.runtimes)) or "none"
            raise ConfigError(f"no plugin offers the sandbox runtime {name!r}; known: {known}")
        return self.runtimes[name]

    def _broken(self, domain: str) -> list[PluginReport]:
        named = [why for record, why in self.broken_handlers if domain == record.name or domain in record.domains]
        if named:
            return _union(named)
        # A plugin that died before it could name its domains is known by its own names only.
        return [
            report
            for report in self.reports
            if report.state in ("incompatible", "import-failed", "invalid")
            and _plain(domain) in (_plain(report.name), _plain(report.distribution))
        ]


def _plain(name: str) -> str:
    """``prorl_Foo`` and ``prorl-foo`` and ``foo`` are one name."""
    return re.sub(r"[-_.]+", "-", name).lower().removeprefix("prorl-")


def _union(groups: Iterable[list[PluginReport]]) -> list[PluginReport]:
    found: list[PluginReport] = []
    for group in groups:
        found += [report for report in group if report not in found]
    return found
