"""Logs of pytest, by its short summary (``-rA``) or its progress (``-v``), as the data sets' own readers take them.

They differ in what they call a test: SWE-bench's first reader ends a name at its first white space, so that expected
names are cut there; the second (``v2``) keeps it whole; ``options`` shortens a path in brackets to its last part.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from prorl_swe.grading.verdict import Outcome

Found = Iterator[tuple[str, Outcome]]
WORDS: dict[str, Outcome] = {
    "FAILED": "failed",
    "PASSED": "passed",
    "SKIPPED": "skipped",
    "ERROR": "error",
    "XFAIL": "xfailed",
    "XPASS": "xpassed",
}
STARTS = tuple(WORDS)
COUNT = re.compile(r"\[[0-9]{1,9}\]")
COLOUR = re.compile(r"\[[0-9]{1,9}m")
ANSI = re.compile(r"\x1b\[[0-9;]{0,32}m|\r")
UNPRINTED = dict.fromkeys(range(1, 32))
SUMMARY = "short test summary info"


def read_summary(text: str) -> Found:
    """``PASSED tests/test_a.py::test_b``, and ``FAILED tests/test_a.py::test_b - message``."""
    return _summary(text.split("\n"))


def read_matplotlib(text: str) -> Found:
    """The expected names are of a Python in which members of an enum were printed as numbers."""
    named = text.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3")
    return _summary(named.split("\n"))


def read_options(text: str) -> Found:
    """``test[/a/b/c]`` is ``test[/c]``: the paths were of another machine."""
    for name, outcome in _summary(text.split("\n")):
        yield shorten(name), outcome


def _summary(lines: list[str]) -> Found:
    for line in lines:
        if not line.startswith(STARTS):
            continue
        words = line.split(maxsplit=2)
        if len(words) > 1 and (outcome := WORDS.get(words[0])) and not _counts(outcome, words[1]):
            yield words[1], outcome


def _counts(outcome: Outcome, name: str) -> bool:
    """``SKIPPED [3] tests/test_a.py:7: reason`` says how many, and not which."""
    return outcome == "skipped" and COUNT.fullmatch(name) is not None


def shorten(name: str) -> str:
    start = name.find("[")
    end = name.rfind("]")
    if start < 0 or end < start:
        return name
    option = name[start + 1 : end]
    if option.startswith("/") and not option.startswith("//") and "*" not in option:
        option = f"/{option.rpartition('/')[2]}"
    return f"{name[:start]}[{option}]"


def read_whole_names(text: str) -> Found:
    """Names with spaces in them; pytest's of old print the outcome last."""
    for raw in text.split("\n"):
        line = COLOUR.sub("", raw).translate(UNPRINTED)
        if line.startswith(STARTS):
            words = (line.partition(" - ")[0] if line.startswith("FAILED") else line).split()
            if len(words) > 1 and (outcome := WORDS.get(words[0])) and not _counts(outcome, words[1]):
                yield " ".join(words[1:]), outcome
        elif line.endswith(STARTS):
            words = line.split()
            if len(words) > 1 and (outcome := WORDS.get(words[-1])):
                yield " ".join(words[:-1]), outcome


def read_progress(text: str) -> Found:
    """SWE-smith's: ``tests/test_a.py::test_b PASSED  [ 50%]``."""
    for line in text.split("\n"):
        if line[:1].isspace():
            continue
        words = line.split(maxsplit=2)
        for word in words[1:2]:
            for start, outcome in WORDS.items():
                if word.startswith(start):
                    yield words[0], outcome


def read_seaborn(text: str) -> Found:
    """Either of the two, without skipped tests and errors."""
    for line in text.split("\n"):
        words = line.split(maxsplit=2)
        if len(words) < 2:
            continue
        if line.startswith("FAILED"):
            yield words[1], "failed"
        elif " PASSED " in line:
            if words[1] == "PASSED":
                yield words[0], "passed"
        elif line.startswith("PASSED"):
            yield words[1], "passed"


def read_r2e(text: str) -> Found:
    """R2E-Gym's: names without their file, ``TestClass.test_a``, and only what the short summary says."""
    _, _, summary = ANSI.sub("", text).partition(SUMMARY)
    for line in summary.split("\n"):
        for word in ("PASSED", "FAILED", "ERROR"):
            if word in line:
                name = name_alone(line)
                yield (name if word == "PASSED" else name.partition(" - ")[0]), WORDS[word]
                break


def name_alone(node_id: str) -> str:
    """``tests/test_a.py::TestClass::test_b[x]`` is ``TestClass.test_b[x]``."""
    return ".".join(node_id.split("::")[1:])
