"""Rows of every kind, and what an instance is made of them."""

import json
import subprocess
from pathlib import Path

import pytest
from published import BENCH, COMMIT, GYM, PATCH, R2E, REBENCH, REFERENCES, ROWS, SKYRL, SMITH, TEST_PATCH

from prorl.api import TaskFault
from prorl_swe.rows import CloneSource, detect, read_row
from prorl_swe.rows.paths import patched_files
from prorl_swe.rows.suites import SWE_BENCH, SWE_GYM

BESIDE = Path(__file__).parents[4] / "shared" / "data"


@pytest.mark.parametrize("kind", ROWS)
def test_a_row_is_told_by_its_fields_and_can_be_named(kind):
    assert detect(ROWS[kind]) == kind
    assert read_row(ROWS[kind]).kind == kind
    assert read_row(ROWS[kind], kind) == read_row(ROWS[kind])


@pytest.mark.parametrize("kind", REFERENCES)
def test_images_as_their_publishers_name_them(kind):
    assert read_row(ROWS[kind]).source.reference == REFERENCES[kind]


def test_lists_and_json_of_lists_are_the_same():
    lists = {name: json.loads(BENCH[name]) for name in ("FAIL_TO_PASS", "PASS_TO_PASS")}
    lists = {**BENCH, **lists}
    assert read_row(lists) == read_row(BENCH)
    assert read_row(BENCH).pass_to_pass == ("tests/test_a.py::test_y[a - b]",)


def test_swe_bench():
    instance = read_row(BENCH)
    assert (instance.gold_patch, instance.test_patch, instance.base_patch) == (PATCH, TEST_PATCH, "")
    assert (instance.test_files, instance.runner, instance.log_format) == (("tests/test_a.py",), "pytest", "pytest-v2")
    assert "conda activate testbed" in instance.source.activate
    assert "hints" not in instance.problem_statement


def test_repositories_with_runners_of_their_own():
    django = read_row({**BENCH, "repo": "django/django"})
    sympy = read_row({**BENCH, "repo": "sympy/sympy"})
    assert (django.runner, django.log_format) == ("unittest", "django")
    assert "--parallel 1" in django.test_command
    assert (sympy.runner, sympy.log_format) == ("log", "sympy")
    assert "bin/test" in sympy.test_command
    assert read_row({**GYM, "repo": "getmoto/moto"}).test_command == "python -m pytest -n0 -rA"
    assert "LANG=en_US.UTF-8" in django.source.activate


def test_skyrl_wraps_rows():
    assert read_row(SKYRL) == read_row(GYM)
    assert read_row({**SKYRL, "instance": json.dumps(GYM)}) == read_row(GYM)
    assert read_row({**SKYRL, "data_source": "swe-bench", "instance": BENCH}).kind == "swe-bench"
    assert read_row({**SKYRL, "data_source": "another"}).kind == "swe-gym"
    clone = {"type": "clone", "location": "/repos/monai"}
    assert read_row({**SKYRL, "source": clone}).source == CloneSource(location="/repos/monai", commit=COMMIT)


def test_swe_smith_turns_its_patch_around():
    instance = read_row(SMITH)
    assert (instance.base_patch, instance.gold_patch, instance.test_patch) == (PATCH, None, "")
    assert instance.test_files == ("tests/oauth1/test_utils.py",)
    assert instance.base_commit == ""


def test_swe_rebench():
    instance = read_row(REBENCH)
    assert instance.test_command == REBENCH["install_config"]["test_cmd"]
    assert instance.log_format == "pytest-v2"
    clone = read_row({**REBENCH, "source": {"type": "clone", "location": "/repos/tox"}})
    assert clone.source.requirements == ("pluggy==1.5.0", "virtualenv")
    assert read_row({**REBENCH, "install_config": {"test_cmd": ["a", "b"]}}).test_command == "a && b"
    with pytest.raises(TaskFault, match="language must be python"):
        read_row({**REBENCH, "language": "rust"})


def test_r2e_gym():
    instance = read_row(R2E)
    assert instance.fail_to_pass == ("TestA.test_mended", "TestA.test_new")
    assert instance.pass_to_pass == ("TestA.test_kept",)
    assert (instance.match, instance.problem_statement) == ("name", "It is wrong.")
    assert "/r2e_tests" in instance.hidden
    assert "xvfb-run" in instance.test_command
    assert patched_files(instance.test_patch) == ("r2e_tests/test_1.py", "r2e_tests/conftest.py")


def test_r2e_gyms_tests_become_a_patch_that_git_takes(tmp_path):
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=read_row(R2E).test_patch.encode(), check=True)
    assert (tmp_path / "r2e_tests/test_1.py").read_text() == "class TestA:\n    def test_kept(self): ..."
    assert (tmp_path / "r2e_tests/conftest.py").read_text() == ""


def test_an_r2e_row_with_a_runner_of_its_own():
    executed = {"test_file_names": ["unittest_custom_runner.py"], "test_file_codes": ["print()\n"]}
    instance = read_row({**R2E, "execution_result_content": executed})
    assert (instance.runner, instance.log_format, instance.test_files) == ("log", "r2e", ())
    assert instance.test_command.endswith("r2e_tests/unittest_custom_runner.py")
    assert instance.fail_to_pass == ("TestA.test_kept", "TestA.test_mended", "TestA.test_new")  # no log from before


def test_a_count_that_a_log_left_behind_is_no_test():
    assert read_row({**BENCH, "PASS_TO_PASS": ["[100%]", "a::b", "[ 50%]"]}).pass_to_pass == ("a::b",)


def test_what_stands_twice_is_kept_once():
    instance = read_row({**BENCH, "FAIL_TO_PASS": ["a::b", "a::b"], "PASS_TO_PASS": ["a::b", "a::c", "a::c"]})
    assert (instance.fail_to_pass, instance.pass_to_pass) == (("a::b",), ("a::c",))


@pytest.mark.parametrize(("name", "kind"), [("swe_bench.jsonl", "swe-bench"), ("swe_pypi.jsonl", "pypi")])
def test_published_rows_load(name, kind):
    path = BESIDE / name
    if not path.exists():
        pytest.skip(f"{path} is not there")
    instances = [read_row(json.loads(line)) for line in path.read_text().splitlines()]
    assert len(instances) == 3
    assert {instance.kind for instance in instances} == {kind}
    assert all(instance.test_files and instance.gold_patch for instance in instances)


def test_the_commands_of_this_package_need_no_shell():
    """Runners take them apart: nothing in them may be left to a shell to expand."""
    for suite in (*SWE_BENCH.values(), *SWE_GYM.values()):
        assert not set(suite.command) & set("$`;&|<>*?~")
        assert suite.runner != "pytest" or "pytest" in suite.command.split()
