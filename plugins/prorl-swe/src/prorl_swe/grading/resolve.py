"""Pure: outcomes of tests in, verdict out."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from prorl_swe.grading.logs import RANKS
from prorl_swe.grading.verdict import Outcome, Report, Verdict
from prorl_swe.inside.names import Wanted
from prorl_swe.rows.instance import Instance

NAMED = 3  # tests in a reason
PASSED: frozenset[Outcome] = frozenset(("passed", "xfailed"))
KEPT: frozenset[Outcome] = PASSED | {"skipped"}


def resolve(instance: Instance, report: Report) -> Verdict:
    """F2P tests must have passed (or failed as the test itself expects), P2P tests must not have failed: a skipped one
    is fine, one that did not run is not. A name that means several tests is as good as the worst of them. Where the
    tests were tampered with, none of them says anything.
    """
    if report.tampering:
        return failing(instance, f"tampering with the tests: {'; '.join(report.tampering[:NAMED])}")
    outcomes = by_name(instance, report)
    f2p = {name: outcomes.get(name) for name in instance.fail_to_pass}
    p2p = {name: outcomes.get(name) for name in instance.pass_to_pass}
    passed = tuple(name for name, outcome in f2p.items() if outcome in PASSED)
    kept = tuple(name for name, outcome in p2p.items() if outcome in KEPT)
    failed = tuple(name for name in f2p if name not in frozenset(passed))
    broken = tuple(name for name in p2p if name not in frozenset(kept))
    reasons = [f"{len(failed)} of {len(f2p)} F2P not passed: {_named(failed, outcomes)}"] if failed else []
    reasons += [f"{len(broken)} of {len(p2p)} P2P broken: {_named(broken, outcomes)}"] if broken else []
    return Verdict(
        resolved=bool(f2p) and not failed and not broken,
        f2p_passed=passed,
        f2p_failed=failed,
        p2p_kept=kept,
        p2p_broken=broken,
        reason="; ".join(reasons) or f"all {len(f2p)} F2P passed, all {len(p2p)} P2P kept",
    )


def unexcused(report: Report, tests: Iterable[str], without_patch: Report) -> Report:
    """A test is skipped, or expected to fail, only where it is so without the agent's patch too: else it has failed."""
    outcomes = dict(report.outcomes)
    for test in tests:
        before = without_patch.outcomes.get(test)
        expected = test in without_patch.marked or before in ("xfailed", "xpassed")
        if not (before == "skipped" or expected if outcomes[test] == "skipped" else expected):
            outcomes[test] = "failed"
    return msgspec.structs.replace(report, outcomes=outcomes)


def by_name(instance: Instance, report: Report) -> dict[str, Outcome]:
    """The outcomes by the names of the row."""
    wanted = Wanted((*instance.fail_to_pass, *instance.pass_to_pass), instance.match)
    found: dict[str, Outcome] = {}
    for node_id, outcome in report.outcomes.items():
        for name in wanted.meant_by(node_id):
            if name not in found or RANKS.index(outcome) > RANKS.index(found[name]):
                found[name] = outcome
    return found


def failing(instance: Instance, reason: str) -> Verdict:
    """For a patch under which no test came to its end."""
    return Verdict(
        resolved=False,
        f2p_passed=(),
        f2p_failed=instance.fail_to_pass,
        p2p_kept=(),
        p2p_broken=instance.pass_to_pass,
        reason=reason,
    )


def _named(names: Iterable[str], outcomes: dict[str, Outcome]) -> str:
    names = tuple(names)
    said = [f"{name} ({outcomes.get(name, 'did not run')})" for name in names[:NAMED]]
    return ", ".join(said) + (", ..." if len(names) > NAMED else "")
