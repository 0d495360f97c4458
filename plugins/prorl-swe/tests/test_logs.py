import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorl_swe.grading.logs import FORMATS, read_log
from prorl_swe.inside.names import Wanted
from prorl_swe.rows.suites import SWE_BENCH, SWE_GYM

LOGS = Path(__file__).parent / "data" / "logs"
SUITE = """\
import sys

import pytest


def test_passes(): ...
def test_fails(): assert 1 == 2, "x - y"
def test_prints_what_is_forged(): print("PASSED test_made.py::test_fails")
@pytest.mark.skip(reason="not today")
def test_skipped(): ...
@pytest.mark.xfail
def test_expected(): assert False
@pytest.mark.xfail
def test_unexpected(): ...
@pytest.fixture
def broken(): raise RuntimeError
def test_errors(broken): ...
@pytest.mark.parametrize("value", ["plain", "a b", "a - b", "/path/to/file", "[x]", "MouseButton.LEFT"])
def test_values(value): assert value != "a - b"


class TestCase:
    def test_method(self): ...
"""


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    folder = tmp_path_factory.mktemp("suite")
    (folder / "test_made.py").write_text(SUITE)
    (folder / "pytest.ini").write_text("[pytest]\n")

    def run(*options, code=1):
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
        environment = {**os.environ, "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "80"}
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    return run


def short(outcomes):
    return {name.removeprefix("test_made.py::"): outcome for name, outcome in outcomes.items()}


COMMON = {
    "test_passes": "passed",
    "test_prints_what_is_forged": "passed",
    "test_fails": "failed",
    "test_errors": "error",
    "test_expected": "xfailed",
    "test_unexpected": "xpassed",
    "test_values[plain]": "passed",
    "test_values[[x]]": "passed",
    "TestCase::test_method": "passed",
}


def test_pytest_cuts_names_at_spaces(suite):
    cut = {"test_values[a": "failed", "test_values[/path/to/file]": "passed", "test_values[MouseButton.LEFT]": "passed"}
    assert short(read_log("pytest", suite("-rA"))) == {**COMMON, **cut}


def test_pytest_v2_keeps_names_whole(suite):
    whole = {
        "test_values[a b]": "passed",
        "test_values[a": "failed",  # what follows " - " in a failure's line is taken for its message
        "test_values[/path/to/file]": "passed",
        "test_values[MouseButton.LEFT]": "passed",
    }
    for options in (["-rA"], ["-rA", "--color=yes"]):
        outcomes = short(read_log("pytest-v2", suite(*options)))
        assert outcomes.pop("test_errors - RuntimeError") == "error"  # SWE-bench cuts messages from failures only
        assert {**outcomes, "test_errors": "error"} == {**COMMON, **whole}
    progress = read_log("pytest-v2", suite("-rA", "-vv", "-o", "console_output_style=classic", "--tb=no"))
    assert short(progress)["test_values[a - b]"] == "failed"
    assert short(progress)["test_passes"] == "passed"


def test_pytest_options_and_matplotlib_and_seaborn(suite):
    log = suite("-rA")
    assert short(read_log("pytest-options", log))["test_values[/file]"] == "passed"
    assert short(read_log("matplotlib", log))["test_values[1]"] == "passed"
    seaborn = short(read_log("seaborn", log))
    assert seaborn["test_fails"] == "failed"
    assert {"test_errors", "test_expected"}.isdisjoint(seaborn)


def test_pytest_progress(suite):
    outcomes = short(read_log("pytest-verbose", suite("-v", "--tb=no", "--disable-warnings", "--color=no")))
    assert outcomes == {
        **COMMON,
        "test_skipped": "skipped",
        "test_values[/path/to/file]": "passed",
        "test_values[MouseButton.LEFT]": "passed",
    }


def test_r2e_names_have_no_file(suite):
    outcomes = read_log("r2e", suite("-rA", "--color=yes"))
    assert outcomes["TestCase.test_method"] == "passed"
    assert outcomes["test_values[a b]"] == "passed"
    assert outcomes["test_fails"] == "failed"
    assert read_log("r2e", "PASSED a.py::test_a\n") == {}


def test_django():
    outcomes = read_log("django", (LOGS / "django.log").read_text())
    case = "utils_tests.test_recorded.RecordedTests"
    assert outcomes["What it is about stands here, not its name."] == "passed"
    assert outcomes["What fails stands here."] == "failed"
    assert outcomes[f"test_errors ({case}.test_errors)"] == "error"
    assert outcomes[f"test_fails ({case}.test_fails)"] == "failed"
    assert outcomes[f"test_skipped ({case}.test_skipped)"] == "skipped"
    assert outcomes[f"test_prints ({case}.test_prints)"] == "passed"
    assert outcomes[f"test_prints_of_testing ({case}.test_prints_of_testing)"] == "passed"
    assert outcomes[f"test_subtests ({case}.test_subtests) (number=2)"] == "failed"
    assert f"test_expected ({case}.test_expected)" not in outcomes  # SWE-bench knows of none in Django, either
    numbers = "utils_tests.test_numberformat.TestNumberFormat"
    assert outcomes[f"test_empty ({numbers}.test_empty)"] == "passed"


def test_sympy():
    assert read_log("sympy", (LOGS / "sympy.log").read_text()) == {
        "test_passes": "passed",
        "test_fails": "failed",
        "test_errors": "error",
        # The last test of a file has the file's own outcome behind it, and SWE-bench never reads it.
        "test_Singleton": "passed",
        "test_singleton_redefinition": "passed",
        "test_truediv": "passed",
        "test_basic": "passed",
        "sympy/core/tests/test_recorded.py:test_fails": "failed",
        "sympy/core/tests/test_recorded.py:test_errors": "failed",
    }


@pytest.mark.parametrize("format", ["pytest", "pytest-options", "pytest-v2", "matplotlib", "pytest-verbose"])
def test_what_a_log_names_is_found_among_the_tests_that_ran(suite, format):
    """Rows were made from logs; the grader's reporter has the ids as pytest has them."""
    log = suite("-v", "-rA")
    ran = suite("--collect-only", "-q", code=0).split("\n\n")[0].splitlines()
    for name in read_log(format, log):
        if "::" not in name or " - " in name:  # a count, or a name with its message
            continue
        assert any(name in Wanted([name]).meant_by(node_id) for node_id in ran), name


@pytest.mark.parametrize(
    ("name", "by", "node_id", "meant"),
    [
        ("a.py::test[x]", "id", "a.py::test[x]", True),
        ("a.py::test[x]", "id", "a.py::test[x y]", False),
        ("a.py::test[x", "id", "a.py::test[x y]", True),
        ("a.py::test[[x]", "id", "a.py::test[[x] y]", True),
        ("a.py::test[/c]", "id", "a.py::test[/a/b/c]", True),
        ("a.py::test[/c]", "id", "a.py::test[//a/b/c]", False),
        ("a.py::test[1]", "id", "a.py::test[MouseButton.LEFT]", True),
        ("A.test[x.y]", "name", "r2e_tests/a.py::A::test[x::y]", True),
        ("test", "name", "r2e_tests/a.py::A::test", False),
    ],
)
def test_names_as_the_data_sets_logs_had_them(name, by, node_id, meant):
    assert Wanted([name], by).meant_by(node_id) == ([name] if meant else [])


@pytest.mark.parametrize(
    ("format", "log", "name"),
    [
        ("pytest", "FAILED a.py::test_a - no\nPASSED a.py::test_a\n", "a.py::test_a"),
        ("pytest", "PASSED a.py::test_a[x y]\nFAILED a.py::test_a[x z]\nPASSED a.py::test_a[x w]\n", "a.py::test_a[x"),
        ("django", "test_a (a.B) ... FAIL\ntest_a (a.B) ... ok\n", "test_a (a.B)"),
        ("django", "test_a (a.B) ... FAIL\nok\n", "test_a (a.B)"),
        ("sympy", "test_a F\ntest_a ok\n", "test_a"),
    ],
)
def test_a_line_printed_afterwards_mends_nothing(format, log, name):
    assert read_log(format, log)[name] == "failed"


def test_every_suite_has_a_reader():
    assert {suite.log_format for suite in (*SWE_BENCH.values(), *SWE_GYM.values())} <= set(FORMATS)


WORDS = st.sampled_from(
    [
        *(
            "PASSED",
            "FAILED",
            "ERROR",
            "SKIPPED",
            "XFAIL",
            " ... ",
            "ok",
            "FAIL",
            " - ",
            "::",
            ".py:",
            "test_",
            "[",
            "]",
        ),
        *(
            "____",
            " ",
            "\n",
            "\t",
            "\r",
            "\x1b[31m",
            " ... Testing against Django installed in ",
            " silenced).\n",
            "/a",
        ),
        *("short test summary info", "FAIL:", "ERROR:", "MouseButton.LEFT", "x", "\u2028", "\x85"),
    ]
)


@given(st.lists(WORDS | st.text(max_size=5), max_size=60).map("".join), st.sampled_from(FORMATS))
@settings(deadline=None, max_examples=300)
def test_any_text_is_a_log(text, format):
    for name, outcome in read_log(format, text).items():
        assert isinstance(name, str)
        assert outcome in {"passed", "failed", "error", "skipped", "xfailed", "xpassed"}


HOSTILE = [
    "_" * 9,
    " " * 9,
    "[" * 9,
    "a ... b",
    "test_ ",
    ".py:",
    "PASSED ",
    "[0m",
    " ... Testing against Django installed in ",
]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("piece", HOSTILE)
def test_time_is_linear_in_the_text(format, piece):
    """A quadratic reader would take hours, and be ended by the limit that every test has."""
    read_log(format, piece * (2_000_000 // len(piece)))
    read_log(format, f"{piece}\n" * (500_000 // len(piece)))
