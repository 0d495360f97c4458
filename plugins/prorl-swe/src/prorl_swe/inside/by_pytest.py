"""pytest's plugin that picks the named tests and reports each of them as it goes.

A test passed when its setup, call and teardown were seen to end without an exception, whatever reports say of it.
"""

# Python 3.6, and no module whose import costs time or could be another's
# ruff: noqa: UP006
import typing

import pytest

from .channel import Send
from .guard import Guard
from .names import Wanted
from .tested import Plugins, Tests

Seen = typing.Dict[str, str]
IDS_AT_ONCE = 20000  # characters


class Reporter:
    """``done``: tests that have had their turn in an earlier process."""

    def __init__(self, wanted: Wanted, done: typing.Iterable[str], guard: Guard, send: Send, probe: str) -> None:
        self._wanted = wanted
        self._done = frozenset(done)
        self._guard = guard
        self._send = send
        self._probe = probe
        self._numbers: typing.Dict[str, int] = {}
        self._marked: typing.Set[str] = set()
        self._seen: Seen = {}
        self._plugins = Plugins(guard)
        self._tests = Tests(guard)
        guard.keep(self)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: typing.Any) -> None:
        self._plugins.begin(session.config)
        self._send({"event": "ready"})

    @pytest.hookimpl(hookwrapper=True)
    def pytest_collection_modifyitems(self, config: typing.Any, items: typing.List[typing.Any]) -> typing.Any:
        """After everybody else's."""
        yield
        kept = {}
        for item in items:
            if item.nodeid not in self._done and item.nodeid not in kept and self._wanted.meant_by(item.nodeid):
                kept[item.nodeid] = item
        dropped = [item for item in items if kept.get(item.nodeid) is not item]
        if dropped:
            config.hook.pytest_deselected(items=dropped)
        items[:] = kept.values()
        if items:
            items.append(_failing(self._probe, items[-1]))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: typing.Any) -> None:
        self._check()
        ids: typing.List[str] = []
        for number, item in enumerate(session.items):
            self._numbers[item.nodeid] = number
            expecting = getattr(getattr(item, "obj", None), "__unittest_expecting_failure__", False)
            if item.get_closest_marker("xfail") or expecting:
                self._marked.add(item.nodeid)
            self._tests.keep(item)
            ids.append(item.nodeid)
            if sum(map(len, ids)) > IDS_AT_ONCE:
                self._send({"event": "ids", "ids": ids})
                ids = []
        self._send({"event": "ids", "ids": ids})
        self._send({"event": "collected", "count": len(session.items)})

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: typing.Any) -> typing.Any:
        self._seen.clear()
        self._send({"event": "start", "test": self._numbers.get(item.nodeid, -1)})
        yield
        self._check()
        self._send(
            {
                "event": "done",
                "test": self._numbers.get(item.nodeid, -1),
                "outcome": self._outcome(),
                "marked": item.nodeid in self._marked,
            }
        )

    def _check(self) -> None:
        self._guard.check()
        self._plugins.check()

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: typing.Any) -> typing.Any:
        self._tests.check(item)
        outcome = yield
        self._seen["ran"] = "passed" if outcome.excinfo is None else "failed"

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: typing.Any, call: typing.Any) -> typing.Any:
        outcome = yield
        report = outcome.get_result()
        if call.when == "setup":
            self._seen.clear()
        self._seen[call.when] = self._phase(item, call, report)

    def pytest_runtest_logreport(self, report: typing.Any) -> None:
        """Parts of a test (subtests) have reports of their own."""
        if report.outcome == "failed":
            self._seen["part"] = "failed"

    def _phase(self, item: typing.Any, call: typing.Any, report: typing.Any) -> str:
        marked = item.nodeid in self._marked
        if report.outcome == "skipped":
            return "xfailed" if marked and hasattr(report, "wasxfail") else "skipped"
        if report.outcome != "passed":
            return "failed"
        if call.excinfo is not None:
            return "failed"
        return "xpassed" if hasattr(report, "wasxfail") else "passed"

    def _outcome(self) -> str:
        seen = self._seen
        if seen.get("setup") != "passed":
            return {"skipped": "skipped", "xfailed": "xfailed"}.get(seen.get("setup", ""), "error")
        if seen.get("teardown") != "passed":
            return "error"
        call = seen.get("call", "error")
        if call == "passed" and (seen.get("ran") != "passed" or "part" in seen):
            return "failed"
        return call


def _failing(name: str, beside: typing.Any) -> typing.Any:
    """A test that can only fail: where it passes, nothing that passes means anything."""

    def fails() -> None:
        raise AssertionError(name)

    parent = beside.getparent(pytest.Module) or beside.parent
    return pytest.Function.from_parent(parent, name=name, callobj=fails)


def run(
    arguments: typing.List[str],
    request: typing.Dict[str, typing.Any],
    guard: Guard,
    send: Send,
) -> int:
    """pytest's exit code."""
    wanted = Wanted(request["names"], request["match"])
    reporter = Reporter(wanted, request["done"], guard, send, request["probe"])
    code = pytest.main(arguments, plugins=[reporter])
    guard.check()
    return int(code)
