"""How the tests of a repository are run where the row does not say."""

from __future__ import annotations

import msgspec

from prorl_swe.rows.instance import Runner


class Suite(msgspec.Struct, frozen=True, kw_only=True):
    """A shell command without the tests' names, the runner for it, and the reader of its log."""

    command: str
    runner: Runner = "pytest"
    log_format: str = "pytest"


PYTEST = Suite(command="python -m pytest -rA")
SUITES = {
    "django/django": Suite(
        command="./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1",
        runner="unittest",
        log_format="django",
    ),
    "sympy/sympy": Suite(command="bin/test -C --verbose", runner="log", log_format="sympy"),
}


def suite_of(repo: str) -> Suite:
    return SUITES.get(repo, PYTEST)
