"""Where ``swebench`` is installed (``pip install prorl-swe[swebench]``), its readers of logs and its verdicts are
compared with ours, on logs of real runs. Where ours differ on purpose, a test here says how.
"""

import itertools
from pathlib import Path

import pytest

from prorl_swe.grading.logs import read_log
from prorl_swe.grading.resolve import resolve
from prorl_swe.grading.verdict import Report
from prorl_swe.rows import read_row
from prorl_swe.rows.suites import SWE_BENCH

grading = pytest.importorskip(
    "swebench.harness.grading", reason="swebench is not installed: pip install 'prorl-swe[swebench]'"
)
parsers = pytest.importorskip("swebench.harness.log_parsers.python")

LOGS = Path(__file__).parent / "data" / "logs"
READERS = {
    "pytest": parsers.parse_log_pytest,
    "pytest-options": parsers.parse_log_pytest_options,
    "pytest-v2": parsers.parse_log_pytest_v2,
    "matplotlib": parsers.parse_log_matplotlib,
    "seaborn": parsers.parse_log_seaborn,
    "django": parsers.parse_log_django,
    "sympy": parsers.parse_log_sympy,
}
OUTCOMES = {"PASSED": "passed", "FAILED": "failed", "ERROR": "error", "SKIPPED": "skipped", "XFAIL": "xfailed"}
STATUSES = {outcome: status for status, outcome in OUTCOMES.items()}
OF_PYTEST = [name for name in READERS if name not in {"django", "sympy"}]
CASES = [
    pytest.param(reader, path, id=f"{reader}-{path.stem}")
    for path in sorted(LOGS.glob("*.log"))
    for reader in (OF_PYTEST if path.stem.startswith("pytest-") else [path.stem])
]


def theirs(reader, log):
    return {name: OUTCOMES[status] for name, status in READERS[reader](log, None).items() if status in OUTCOMES}


def ours(reader, log):
    """SWE-bench has no word for a test that passed unexpectedly."""
    return {name: outcome for name, outcome in read_log(reader, log).items() if outcome != "xpassed"}


def test_every_repository_has_swebenchs_reader():
    assert {repo: READERS[suite.log_format] for repo, suite in SWE_BENCH.items()} == {
        repo.lower(): parser for repo, parser in parsers.MAP_REPO_TO_PARSER_PY.items()
    }


@pytest.mark.parametrize(("reader", "path"), CASES)
def test_the_same_log_says_the_same(reader, path):
    log = path.read_text()
    assert theirs(reader, log)
    assert ours(reader, log) == theirs(reader, log)


def test_of_two_outcomes_ours_is_the_worse_and_theirs_the_last():
    log = "FAILED a.py::test_a[x y] - no\nPASSED a.py::test_a[x z]\n"
    assert (theirs("pytest", log), ours("pytest", log)) == ({"a.py::test_a[x": "passed"}, {"a.py::test_a[x": "failed"})


def verdicts(f2p, p2p, outcomes):
    """SWE-bench's, and ours in its words."""
    statuses = {name: STATUSES[outcome] for name, outcome in outcomes.items() if outcome in STATUSES}
    report = grading.get_eval_tests_report(statuses, {"FAIL_TO_PASS": f2p, "PASS_TO_PASS": p2p})
    lists = [report[kind][end] for kind in ("FAIL_TO_PASS", "PASS_TO_PASS") for end in ("success", "failure")]
    row = {
        "repo": "pallets/flask",
        "instance_id": "pallets__flask-1",
        "base_commit": "0" * 40,
        "problem_statement": "It is wrong.",
        "FAIL_TO_PASS": f2p,
        "PASS_TO_PASS": p2p,
    }
    found = resolve(read_row(row, "swe-bench"), Report(outcomes=outcomes, complete=True, seconds=1.0))
    mine = [list(names) for names in (found.f2p_passed, found.f2p_failed, found.p2p_kept, found.p2p_broken)]
    resolved = grading.get_resolution_status(report) == "RESOLVED_FULL"
    return (resolved, lists), (found.resolved, mine)


def seen(**outcomes):
    return {f"a.py::{name}": outcome for name, outcome in outcomes.items() if outcome is not None}


ANY = (None, *OUTCOMES.values(), "xpassed")


def test_verdicts_agree_on_every_outcome():
    for one, two, kept in itertools.product(ANY, repeat=3):
        theirs, ours = verdicts(["a.py::one", "a.py::two"], ["a.py::kept"], seen(one=one, two=two, kept=kept))
        assert ours == theirs, (one, two, kept)


def test_verdicts_agree_on_names_that_were_cut():
    """Where several tests have the beginning that is left, they must agree: the worst of them counts for us."""
    differing = set()
    for one, two in itertools.product(OUTCOMES.values(), repeat=2):
        outcomes = {"a.py::test[x y]": one, "a.py::test[x z]": two, "a.py::kept[p q]": one, "a.py::kept[p r]": two}
        theirs, ours = verdicts(["a.py::test[x"], ["a.py::kept[p"], outcomes)
        assert ours[0] == theirs[0], (one, two)
        if ours != theirs:
            differing.add(frozenset((one, two)))
    # Of a skipped P2P test and another, SWE-bench goes by the first, if neither passed, and by none, if one did.
    assert differing == {frozenset(("skipped", other)) for other in ("passed", "xfailed", "failed", "error")}


@pytest.mark.parametrize("path", sorted(LOGS.glob("pytest-*.log")), ids=lambda path: path.stem)
def test_verdicts_agree_on_real_logs(path):
    log = path.read_text()
    names = sorted(theirs("pytest", log))
    for some in (names[:1], names[-1:], names[::2]):
        given, wanted = verdicts(some, [name for name in names if name not in some], ours("pytest", log))
        assert wanted == given
