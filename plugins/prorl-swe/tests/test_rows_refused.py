"""Rows that cannot be used are refused with the field that is wrong, whatever stands in it."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published import BENCH, OLD_LOG, PATCH, R2E, ROWS

from prorl.api import GraderFault, TaskFault
from prorl_swe.rows import read_row


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("swe-bench", "instance_id", "../../etc/passwd"),
        ("swe-bench", "instance_id", ".hidden"),
        ("swe-bench", "instance_id", "a/b"),
        ("swe-bench", "repo", "astropy"),
        ("swe-bench", "repo", "../x"),
        ("swe-bench", "base_commit", "--upload-pack=x"),
        ("swe-bench", "base_commit", "main"),
        ("swe-bench", "problem_statement", "  "),
        ("swe-bench", "problem_statement", "a" * 2_000_000),
        ("swe-bench", "problem_statement", "\ud800"),
        ("swe-bench", "FAIL_TO_PASS", "tests/test_a.py::test_x"),
        ("swe-bench", "FAIL_TO_PASS", [1]),
        ("swe-bench", "FAIL_TO_PASS", ["a\nb"]),
        ("swe-bench", "FAIL_TO_PASS", ["a" * 5000]),
        ("swe-bench", "PASS_TO_PASS", {"a": 1}),
        ("swe-bench", "PASS_TO_PASS", "[" * 100_000),
        ("swe-bench", "patch", "not a patch"),
        ("swe-bench", "test_patch", PATCH.replace("a.py", "../a.py")),
        ("swe-bench", "test_patch", PATCH.replace("a.py", ".git/hooks/pre-commit")),
        ("swe-bench", "test_patch", "--- /dev/null\n+++ /etc/cron.d/x\n@@ -0,0 +1 @@\n+x\n"),
        ("swe-bench", "image_name", "docker://a b"),
        ("swe-bench", "image_name", "../../x"),
        ("swe-bench", "test_command", "a\nb"),
        ("swe-bench", "source", {"type": "clone"}),
        ("swe-bench", "source", {"type": "clone", "location": "/a", "commit": "-x"}),
        ("swe-bench", "source", {"type": "svn"}),
        ("swe-bench", "source", {"type": "image", "reference": "a", "path": "/a/../b"}),
        ("swe-bench", "requirements", ["numpy"]),
        ("pypi", "requirements", ["numpy", "mine @ file:///home/me/wheel"]),
        ("pypi", "requirements", ["mine @ git+https://host.example/mine"]),
        ("pypi", "requirements", ["-r /etc/passwd"]),
        ("pypi", "requirements", ["./mine"]),
        ("swe-bench", "version", ["1"]),
        ("pypi", "base_commit", "pyflakes"),
        ("pypi", "base_commit", "pyflakes==../3"),
        ("pypi", "sdist", "../x.tar.gz"),
        ("pypi", "sdist", "x.whl"),
        ("pypi", "sdist_sha256", "0"),
        ("pypi", "requirements", "numpy"),
        ("swe-smith", "patch", ""),
        ("swe-smith", "image_name", None),
        ("swe-rebench", "install_config", "{"),
        ("r2e-gym", "execution_result_content", {"test_file_names": ["../a.py"], "test_file_codes": [""]}),
        ("r2e-gym", "execution_result_content", {"test_file_names": ["a.py"], "test_file_codes": []}),
        ("r2e-gym", "expected_output_json", "[]"),
        ("r2e-gym", "docker_image", 1),
    ],
)
def test_a_bad_field_is_named(kind, field, value):
    with pytest.raises(TaskFault, match=rf"^{field}|^execution_result_content") as caught:
        read_row({**ROWS[kind], field: value}, kind)
    assert caught.value.code == "bad_row"
    assert len(str(caught.value)) < 400


def test_what_a_row_was_taken_for_is_said():
    """A row of a source distribution whose `sdist` is missing has the fields of SWE-bench."""
    row = {name: value for name, value in ROWS["pypi"].items() if name != "sdist"}
    with pytest.raises(TaskFault, match=r"^base_commit .* \(by its fields a row of swe-bench\)$") as caught:
        read_row(row)
    assert caught.value.code == "bad_row"


def test_a_row_without_tests_cannot_be_judged():
    with pytest.raises(GraderFault) as caught:
        read_row({**BENCH, "FAIL_TO_PASS": "[]"})
    assert caught.value.code == "no_tests"
    passed = OLD_LOG.replace("FAILED", "PASSED")
    before = json.loads(R2E["execution_result_content"]) | {"old_commit_res_stdout": passed}
    expected = {"TestA.test_kept": "PASSED"}
    with pytest.raises(GraderFault):
        read_row({**R2E, "execution_result_content": before, "expected_output_json": expected})


def test_an_unknown_row_says_what_rows_there_are():
    with pytest.raises(TaskFault, match="swe-rebench: instance_id"):
        read_row({"question": "?"})
    with pytest.raises(TaskFault, match="not a kind of row"):
        read_row(BENCH, "swe-lancer")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(sorted(ROWS)), st.data())
@settings(deadline=None, max_examples=300)
def test_any_value_in_any_field_is_read_or_refused_as_a_fault(kind, data):
    field = data.draw(st.sampled_from([*sorted(ROWS[kind]), "source", "requirements", "test_command", "instance"]))
    row = {**ROWS[kind], field: data.draw(VALUES)}
    for named in ("auto", kind):
        with contextlib.suppress(TaskFault, GraderFault):
            read_row(row, named)
