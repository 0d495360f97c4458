"""What a log says of every test: for suites that no reporter of ours can be put into, and for parity with SWE-bench.

A log is only text that the code under test could have printed, too: what is read here is believed where
``runner="log"`` leaves no other way, and nowhere else. Every reader is pure and takes time linear in the text. A test
that the log names more than once has the worst of its outcomes (SWE-bench takes the last): a line printed afterwards
mends nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prorl_swe.grading.logs import django, pytest, sympy
from prorl_swe.grading.verdict import Outcome

Reader = Callable[[str], Iterator[tuple[str, Outcome]]]
READERS: dict[str, Reader] = {
    "pytest": pytest.read_summary,
    "pytest-options": pytest.read_options,
    "pytest-v2": pytest.read_whole_names,
    "pytest-verbose": pytest.read_progress,
    "matplotlib": pytest.read_matplotlib,
    "seaborn": pytest.read_seaborn,
    "r2e": pytest.read_r2e,
    "django": django.read,
    "sympy": sympy.read,
}
FORMATS = tuple(READERS)
# The better outcome first.
RANKS: tuple[Outcome, ...] = ("passed", "xfailed", "skipped", "xpassed", "failed", "error", "timeout", "crashed")

__all__ = ["FORMATS", "read_log"]


def read_log(format: str, text: str) -> dict[str, Outcome]:
    """Every test in ``text`` and its outcome. ``format`` is one of :data:`FORMATS` (``KeyError`` otherwise)."""
    found: dict[str, Outcome] = {}
    for name, outcome in READERS[format](text):
        known = found.get(name)
        if known is None or RANKS.index(outcome) > RANKS.index(known):
            found[name] = outcome
    return found
