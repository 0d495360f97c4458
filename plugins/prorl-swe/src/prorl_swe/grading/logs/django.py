"""Logs of Django's own runner (``runtests.py --verbosity 2``): unittest's, with whatever the tests print between.

A test is a line ``test_a (app.tests.Case) ... ok``, or the first line of its docstring in place of the name, and that
is how the expected tests are named, too. What a test prints may stand between the dots and the outcome.
"""

from __future__ import annotations

from collections.abc import Iterator

from prorl_swe.grading.verdict import Outcome

DOTS = " ... "
PASSED = (" ... ok", " ... OK", " ...  OK")
# A docstring that ends with dots of its own, and one test that is printed over several lines.
SPLIT = "Applying sites.0002_alter_domain_unique...test_no_migrations"
SPREAD = "--version is equivalent to version"
BROKEN: tuple[tuple[str, Outcome], ...] = (("FAIL", "failed"), ("ERROR", "error"))
TESTING = " ... Testing against Django installed in "


def read(text: str) -> Iterator[tuple[str, Outcome]]:
    before: str | None = None  # the test that was named last
    waiting: str | None = None  # the test whose outcome comes after a long message
    silenced = False
    for raw in text.split("\n"):
        line = raw.strip()
        if SPREAD in line:
            yield SPREAD, "passed"
        if DOTS in line:
            before = line.partition(DOTS)[0]
        yield from outcomes(line)
        if line.startswith("ok") and before is not None:
            yield before, "passed"
        if waiting is not None and silenced and raw == "ok":
            yield waiting, "passed"
            waiting = None
        if waiting is None and TESTING in raw:
            waiting = raw.partition(DOTS)[0]
        silenced = raw.endswith(" silenced).")


def outcomes(line: str) -> Iterator[tuple[str, Outcome]]:
    """What one line says by itself."""
    for suffix in PASSED:
        if line.endswith(suffix):
            whole = line.partition("...")[2].strip() if line.startswith(SPLIT) else line
            yield whole.rpartition(suffix)[0] or whole, "passed"
            break
    if " ... skipped" in line:
        yield line.partition(" ... skipped")[0], "skipped"
    for word, outcome in BROKEN:
        if line.endswith(f" ... {word}"):
            yield line.partition(f" ... {word}")[0], outcome
        if line.startswith(f"{word}:") and len(words := line.split(maxsplit=2)) > 1:
            yield words[1], outcome
