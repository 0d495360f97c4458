"""Which names a record claims, and what happens when two plugins claim one.

Nobody wins: both records are left out and both reports name both plugins, because a job silently served by the wrong
one of two handlers is worse than a job refused. The one exception is the core's own records: they stay, and only the
plugin that claims their name is in conflict, else any plugin could take away ``prorl serve``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from prorl.api.records import HandlerRecord, Record, SettingsRecord, ToolRecord
from prorl.plugins.errors import describe
from prorl.plugins.loading import Loaded

Claim = tuple[str, str, str]  # hook, kind of name, name
CORE = "prorl"


def claims(hook: str, record: Record) -> Iterator[Claim]:
    yield hook, "name", record.name
    match record:
        case HandlerRecord():
            yield from ((hook, "name", domain) for domain in record.domains)
            yield from ((hook, "prefix", prefix) for prefix in record.prefixes)
        case ToolRecord():
            yield from ((hook, "name", alias) for alias in record.aliases)
        case SettingsRecord():  # a table is found by its type
            yield hook, "type", f"{record.type.__module__}.{record.type.__qualname__}"


def settle(plugins: Sequence[Loaded]) -> dict[int, list[tuple[str, Record]]]:
    """Mark the conflicts in the reports; returns the records left out, by the plugin's position."""
    claimants: dict[Claim, list[tuple[int, Record]]] = defaultdict(list)
    for position, plugin in enumerate(plugins):
        if plugin.report.state != "active":
            continue
        for hook, record in plugin.records:
            for claim in dict.fromkeys(claims(hook, record)):
                claimants[claim].append((position, record))
    left_out: dict[int, list[tuple[str, Record]]] = defaultdict(list)
    reasons: dict[int, list[str]] = defaultdict(list)
    for (hook, kind, name), holders in claimants.items():
        if len(holders) == 1:
            continue
        everyone = list(dict.fromkeys(position for position, _ in holders))
        losers = [position for position in everyone if not _is_core(plugins[position])] or everyone
        who = " and ".join(describe(plugins[position].report) for position in everyone)
        twice = " twice" if len(everyone) == 1 else ""
        for position in losers:
            reasons[position].append(f"{hook}: {kind} {name!r} is claimed{twice} by {who}")
            left_out[position] += [
                (hook, record)
                for holder, record in holders
                if holder == position and (hook, record) not in left_out[position]
            ]
    for position, found in reasons.items():
        report = plugins[position].report
        report.state = "conflict"
        report.reason = f"{'; '.join(found)}: uninstall or rename one"
    return left_out


def _is_core(plugin: Loaded) -> bool:
    return plugin.report.distribution == CORE
