"""One entry point, from requirement check to checked records. Whatever is wrong with it ends in its report.

Order matters: the distribution's requirement on ``prorl`` is read *before* the import, so that a plugin for a newer
core is told apart by a sentence and not by the traceback it would have died of.
"""

from __future__ import annotations

import difflib
import inspect
import traceback
from dataclasses import dataclass, field
from importlib.metadata import Distribution, EntryPoint

import pluggy
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from prorl.api.records import Record
from prorl.plugins.checks import RECORD_OF_HOOK, BadRecord, check_answer
from prorl.wire.service import PluginReport, PluginState

_REASON_CHARS = 600


@dataclass
class Loaded:
    """A plugin after loading. ``records`` are in use only when the report says ``active``; otherwise they are what is
    known of a plugin that failed later (so that its domains are recognised)."""

    report: PluginReport
    records: list[tuple[str, Record]] = field(default_factory=list)


class _Rejected(Exception):  # noqa: N818 - leaves the loading steps with the state to report
    def __init__(self, state: PluginState, reason: str) -> None:
        super().__init__(reason)
        self.state = state


def load_plugin(
    entry_point: EntryPoint, distribution: Distribution, manager: pluggy.PluginManager, core_version: str
) -> Loaded:
    """Never raises for what the plugin does, except ``KeyboardInterrupt``: that one is the user's."""
    loaded = Loaded(
        PluginReport(
            name=entry_point.name,
            distribution=distribution.name,
            version=distribution.version or "unknown",
            state="active",
        )
    )
    try:
        _check_requirement(distribution, core_version)
        plugin = _import(entry_point)
        _register(plugin, manager, f"{distribution.name}:{entry_point.name}")
        _collect(plugin, manager, loaded.records)
    except _Rejected as rejected:
        loaded.report.state = rejected.state
        loaded.report.reason = one_line(str(rejected))
    return loaded


def one_line(text: str) -> str:
    """A reason as a table cell, a log line and a problem's detail can hold it."""
    line = " ".join(text.split())
    return line if len(line) <= _REASON_CHARS else line[: _REASON_CHARS - 3] + "..."


def _check_requirement(distribution: Distribution, core_version: str) -> None:
    for text in distribution.requires or []:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            raise _Rejected("invalid", f"its metadata has an unreadable requirement {text!r}: {error}") from error
        if canonicalize_name(requirement.name) != "prorl":
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if not requirement.specifier.contains(core_version, prereleases=True):
            raise _Rejected(
                "incompatible",
                f"needs prorl{requirement.specifier}, but this is prorl {core_version}: upgrade prorl or install "
                f"another version of {distribution.name}",
            )


def _import(entry_point: EntryPoint) -> object:
    if not entry_point.pattern.match(entry_point.value):
        raise _Rejected("invalid", f"its entry point {entry_point.value!r} is not of the form module[:object]")
    try:
        return entry_point.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit and the like must not end the server either
        raise _Rejected("import-failed", f"importing {entry_point.value}: {_say(error)}") from error


def _register(plugin: object, manager: pluggy.PluginManager, name: str) -> None:
    for attribute, value in vars(plugin).items() if hasattr(plugin, "__dict__") else ():
        if attribute.startswith("prorl_") and inspect.isfunction(value) and not hasattr(value, "prorl_impl"):
            raise _Rejected("invalid", f"{attribute} is not marked with @hookimpl, so it would never be called")
    try:
        manager.register(plugin, name=name)
    except Exception as error:  # arguments that the hook has not, or the same module a second time
        raise _Rejected("invalid", _say(error)) from error
    for caller in manager.get_hookcallers(plugin) or ():
        if not caller.has_spec():
            close = difflib.get_close_matches(caller.name, RECORD_OF_HOOK, n=1)
            hint = f": did you mean {close[0]}?" if close else f"; hooks are {', '.join(RECORD_OF_HOOK)}"
            raise _Rejected("invalid", f"there is no hook {caller.name}{hint}")


def _collect(plugin: object, manager: pluggy.PluginManager, records: list[tuple[str, Record]]) -> None:
    # One implementation at a time: through the hook caller, one that raises would abort all the others.
    for caller in manager.get_hookcallers(plugin) or ():
        for implementation in caller.get_hookimpls():
            if implementation.plugin is not plugin:
                continue
            if implementation.wrapper or implementation.hookwrapper:
                raise _Rejected(
                    "invalid", f"{caller.name} is a wrapper; hooks of prorl return records and wrap nothing"
                )
            try:
                answer: object = implementation.function()
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                raise _Rejected("invalid", f"{caller.name} raised {_say(error)}") from error
            if inspect.iscoroutine(answer):
                answer.close()
                raise _Rejected("invalid", f"{caller.name} is async; hooks are plain functions that return a list")
            try:
                checked = check_answer(caller.name, answer)
            except BadRecord as error:
                raise _Rejected("invalid", str(error)) from error
            records.extend((caller.name, record) for record in checked)


def _say(error: BaseException) -> str:
    """``ImportError: No module named 'x' (plugin.py, line 3)``: the place is where the author must look."""
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen ")
        and "/importlib/" not in frame.filename
        and frame.filename != __file__
    ]
    return f"{said} ({frames[-1].filename}, line {frames[-1].lineno})" if frames else said
