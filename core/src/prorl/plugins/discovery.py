"""Walk the installed distributions' entry points of the group ``prorl``, one by one, into a :class:`Registry`.

Each plugin ends as a report with a state: ``active``, ``incompatible`` (needs another core), ``import-failed``,
``invalid`` (a hook or record that cannot be used: nothing of this plugin is) or ``conflict`` (only the records whose
name another plugin claims too are left out). No plugin can stop the others, or the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import metadata

import pluggy
from packaging.utils import canonicalize_name

from prorl.api import hookspecs
from prorl.api.errors import ConfigError
from prorl.api.records import (
    CommandRecord,
    DemoRecord,
    DialectRecord,
    HandlerRecord,
    Record,
    RuntimeRecord,
    SettingsRecord,
    ToolRecord,
)
from prorl.plugins.claims import claims, settle
from prorl.plugins.errors import complain
from prorl.plugins.loading import Loaded, load_plugin, one_line
from prorl.plugins.registry import Registry
from prorl.wire.service import PluginReport


def discover(*, distributions: Iterable[metadata.Distribution] | None = None, strict: bool = False) -> Registry:
    """Load every plugin of ``distributions`` (default: all that are installed).

    ``strict`` raises ``ConfigError`` naming all plugins that are not active.
    """
    manager = pluggy.PluginManager("prorl")
    manager.add_hookspecs(hookspecs)
    core_version = metadata.version("prorl")
    plugins: list[Loaded] = []
    for distribution in _each_once(metadata.distributions() if distributions is None else distributions):
        try:
            entry_points = distribution.entry_points.select(group=hookspecs.ENTRY_POINT_GROUP)
        except Exception as error:  # a file by hand or by a broken build; other packages' are none of our business
            if "[prorl]" in (distribution.read_text("entry_points.txt") or ""):
                plugins.append(_unreadable(distribution, error))
            continue
        plugins += [
            load_plugin(entry_point, distribution, manager, core_version)
            for entry_point in sorted(entry_points, key=lambda each: each.name)
        ]
    registry = _assemble(plugins)
    if strict and registry.failed:
        bad = "; ".join(complain(report) for report in registry.failed)
        raise ConfigError(
            f"plugins that cannot be used: {bad}; repair or uninstall them, or leave out --strict-plugins"
        )
    return registry


def _each_once(distributions: Iterable[metadata.Distribution]) -> Iterator[metadata.Distribution]:
    """By name; of several copies the first on the path is the one that would be imported."""
    found: dict[str, metadata.Distribution] = {}
    for distribution in distributions:
        try:
            about = distribution.metadata
        except FileNotFoundError:
            continue
        if "Name" in about:  # a half-removed distribution leaves a folder without metadata behind
            found.setdefault(canonicalize_name(about["Name"]), distribution)
    return (found[name] for name in sorted(found))


def _unreadable(distribution: metadata.Distribution, error: Exception) -> Loaded:
    return Loaded(
        PluginReport(
            name=distribution.name,
            distribution=distribution.name,
            version=distribution.version or "unknown",
            state="invalid",
            reason=one_line(f"its entry_points.txt cannot be read: {type(error).__name__}: {error}"),
        )
    )


def _assemble(plugins: list[Loaded]) -> Registry:
    left_out = settle(plugins)
    registry = Registry(reports=[plugin.report for plugin in plugins])
    for position, plugin in enumerate(plugins):
        in_use = plugin.report.state in ("active", "conflict")
        for hook, record in plugin.records:
            if in_use and (hook, record) not in left_out[position]:
                plugin.report.offers.setdefault(hook, []).append(record.name)
                _file(registry, record)
            elif isinstance(record, HandlerRecord):
                registry.broken_handlers.append((record, _concerned(plugins, plugin, hook, record)))
    return registry


def _concerned(plugins: list[Loaded], plugin: Loaded, hook: str, record: HandlerRecord) -> list[PluginReport]:
    """The plugin itself, and those that it shares a name of this record with."""
    if plugin.report.state != "conflict":
        return [plugin.report]
    mine = set(claims(hook, record))
    return [
        other.report
        for other in plugins
        if other.report.state in ("active", "conflict")
        and any(mine.intersection(claims(its_hook, its)) for its_hook, its in other.records)
    ]


def _file(registry: Registry, record: Record) -> None:
    match record:
        case HandlerRecord():
            registry.handlers[record.name] = record
        case ToolRecord():
            registry.tools[record.name] = record
        case RuntimeRecord():
            registry.runtimes[record.name] = record
        case DialectRecord():
            registry.dialects[record.name] = record
        case SettingsRecord():
            registry.settings[record.name] = record
        case CommandRecord():
            registry.commands[record.name] = record
        case DemoRecord():
            registry.demos[record.name] = record
