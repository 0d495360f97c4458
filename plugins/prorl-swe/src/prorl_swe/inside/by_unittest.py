"""The hook on unittest's results, for programs of a repository's own that run unittest (Django's runtests.py).

Every result class there is calls the base class's methods, or is not unittest's. A test is known by all the names that
logs give it: with and without the method in brackets, and by the first line of its docstring.
"""

# Python 3.6, and no module whose import costs time or could be another's
# ruff: noqa: UP006, ARG005, N802, PT009, SLF001
import typing
import unittest

from .channel import Send
from .guard import Guard

Method = typing.Callable[..., typing.Any]
OUTCOMES = {
    "addSuccess": "passed",
    "addFailure": "failed",
    "addError": "error",
    "addSkip": "skipped",
    "addExpectedFailure": "xfailed",
    "addUnexpectedSuccess": "xpassed",
}


class Hook:
    """``done``: tests that have had their turn in an earlier process."""

    def __init__(self, guard: Guard, send: Send, done: typing.Iterable[str]) -> None:
        self._done = frozenset(done)
        self._guard = guard
        self._send = send
        self._number = -1
        self._outcomes: typing.List[str] = []
        self._passed_by = False
        self.silent = False

    def started(self, test: typing.Any) -> None:
        if self.silent:
            return
        self._passed_by = bool(self._done.intersection(names(test)))
        if self._passed_by:
            setattr(test, test._testMethodName, unittest.skip("it had its turn")(lambda: None))
            return
        self._number += 1
        self._outcomes = []
        self._send({"event": "ids", "ids": [names(test)]})
        self._send({"event": "start", "test": self._number})

    def ended(self, test: typing.Any) -> None:
        if self.silent or self._passed_by:
            return
        self._guard.check()
        bad = [outcome for outcome in self._outcomes if outcome != "passed"]
        outcome = bad[-1] if bad else (self._outcomes or ["error"])[0]
        self._send({"event": "done", "test": self._number, "outcome": outcome, "marked": is_marked(test)})

    def said(self, outcome: str) -> None:
        self._outcomes.append(outcome)


def is_marked(test: typing.Any) -> bool:
    """Whether it is expected to fail."""
    method = getattr(test, getattr(test, "_testMethodName", ""), None)
    return any(getattr(part, "__unittest_expecting_failure__", False) is True for part in (test, method))


def names(test: typing.Any) -> typing.List[str]:
    """``test_x (package.Class)`` first."""
    kind = type(test)
    short = "{} ({}.{})".format(getattr(test, "_testMethodName", test), kind.__module__, kind.__qualname__)
    found = [short, str(test)]
    if test.shortDescription():
        found.append(test.shortDescription())
    return list(dict.fromkeys(found))


def hook(guard: Guard, send: Send, done: typing.Iterable[str]) -> Hook:
    base = unittest.TestResult
    hooked = Hook(guard, send, done)

    def before(name: str, what: typing.Callable[[typing.Any], None]) -> None:
        original = getattr(base, name)

        def method(self: typing.Any, test: typing.Any, *rest: typing.Any) -> typing.Any:
            what(test)
            return original(self, test, *rest)

        setattr(base, name, method)

    for name, outcome in OUTCOMES.items():
        before(name, lambda test, outcome=outcome: hooked.said(outcome))  # type: ignore[misc]
    before("startTest", hooked.started)
    before("stopTest", hooked.ended)
    original = base.addSubTest

    def add_sub_test(self: typing.Any, test: typing.Any, subtest: typing.Any, error: typing.Any) -> None:
        if error is not None:
            hooked.said("failed")
        original(self, test, subtest, error)

    base.addSubTest = add_sub_test  # type: ignore[method-assign, assignment]
    send({"event": "ready"})
    return hooked


def still_fails() -> bool:
    """Whether a test that can only fail does: where it passes, nothing that passes means anything."""

    class Fails(unittest.TestCase):
        def runTest(self) -> None:
            self.assertEqual(1, 2)

    result = unittest.TestResult()
    Fails().run(result)
    return len(result.failures) == 1 and not result.wasSuccessful()
