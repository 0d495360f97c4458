"""From what ran to what it is worth: F2P all passed, P2P none broken."""

from __future__ import annotations

from typing import Literal

import msgspec

Outcome = Literal["passed", "failed", "error", "skipped", "xfailed", "xpassed", "timeout", "crashed"]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What the grader's runner saw: the outcome of every test that ran, by node id; a test that is not in it did not
    run to its end. ``complete``: the run ended as a run of tests ends. ``log`` is what was printed (its end).
    ``tampering``: what the code under test did to the machinery that tests it; ``notes``: what else is worth knowing;
    ``marked``: the tests that were expected to fail.
    """

    outcomes: dict[str, Outcome]
    complete: bool
    seconds: float
    log: str = ""
    tampering: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    marked: tuple[str, ...] = ()


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """``resolved``: all F2P passed and no P2P broke. The four lists name tests of the row."""

    resolved: bool
    f2p_passed: tuple[str, ...]
    f2p_failed: tuple[str, ...]
    p2p_kept: tuple[str, ...]
    p2p_broken: tuple[str, ...]
    reason: str
