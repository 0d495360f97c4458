"""Which paths are the grader's, how a row's command is taken apart, and what outcomes are worth: no sandbox needed."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import pytest

from prorl_swe import inside
from prorl_swe.grading.program import program_of, shell_command
from prorl_swe.grading.protected import Protection, same_test_settings
from prorl_swe.grading.resolve import resolve
from prorl_swe.grading.verdict import Report
from prorl_swe.inside.names import Wanted
from prorl_swe.rows import ImageSource, Instance

ROW = Instance(
    kind="swe-bench",
    instance_id="a__b-1",
    repo="a/b",
    version="1",
    base_commit="0" * 40,
    problem_statement="It is broken.",
    source=ImageSource(reference="docker://a"),
    fail_to_pass=("pkg/sub/tests/deep/test_a.py::test_x", "top/test_b.py::test_y"),
    pass_to_pass=("check_c.py::test_z",),
)
OURS = """
    pkg/sub/tests pkg/sub/tests/deep/test_a.py pkg/sub/tests/helpers.py pkg/sub/tests/new/x.py pkg top top/test_b.py
    top/test_b.py/x check_c.py new_test.patch.py conftest.py pkg/conftest.py tox.ini .pytest.ini a/b/sitecustomize.py
    x.pth pkg/__pycache__/a.pyc pkg/a.pyc b.egg-info/PKG-INFO src/b.dist-info/x pytest.py _pytest/a.py src/json.py
    top/os/__init__.py top/unittest.so .coveragerc top/re.cpython-311-x86_64-linux-gnu.so pkg/sub/tests/deep/ast.py
"""
THEIRS = """
    pkg/sub/a.py pkg/sub/json.py pkg/types.py docs/tests/x.rst top/b.py README.md pkg/test_new.py setup.py
    attr/_make.py attr/new.py pkg/sub/testing.py src/b/a.py tests_of_mine/a.py top/ast.py
"""
THERE = {"attr/_make.py", "pkg/__init__.py", "pkg/sub/__init__.py", "top/test_b.py", "top/ast.py"}


@pytest.mark.parametrize("path", OURS.split())
def test_what_is_the_graders(path):
    assert Protection(ROW, ["new_test.patch.py"], THERE)(path)


@pytest.mark.parametrize("path", [".venv/lib/python3.9/site-packages/x.py", "anyio/pytest_plugin.py", "top/anyio.py"])
def test_what_the_environment_has_is_not_the_agents(path):
    assert Protection(ROW, [], THERE, ["anyio", "/.venv"])(path)
    assert not Protection(ROW, [], {*THERE, path}, ["/env", "pkg", "x"])(path)


@pytest.mark.parametrize("path", THEIRS.split())
def test_what_is_not(path):
    assert not Protection(ROW, ["new_test.patch.py"], THERE)(path)


@pytest.mark.parametrize(
    ("name", "old", "new", "same"),
    [
        ("pyproject.toml", "[project]\nname='a'\n", "[project]\nname='b'\n", True),
        ("pyproject.toml", "[project]\nname='a'\n", "[tool]\npytest={ini_options={addopts='-x'}}\n", False),
        ("pyproject.toml", "", 'tool."pytest".ini_options.addopts = "-x"', False),
        ("pyproject.toml", "[tool.pytest.ini_options]\na='1'\n", "", False),
        ("pyproject.toml", "", "no toml", False),
        ("pyproject.toml", "[tool.pytest]\na='1'\n", "x='''\n[tool.pytest]\n'''\n[tool.pytest]\na='1'\n", True),
        ("setup.cfg", "[metadata]\na=1\n", "[metadata]\na=2\n", True),
        ("setup.cfg", "[metadata]\na=1\n", "[metadata]\na=1\n[tool:pytest]\naddopts=-x\n", False),
        ("setup.cfg", "[tool:pytest]\naddopts=-x\n", "[metadata]\na=1\n", False),
        ("setup.cfg", "[a]\nb=1\n", "[a]\nb=1\u2028[tool:pytest]\u2028addopts=-x\n", False),
        ("setup.cfg", "[a]\nb=1\n", "[a]\nb=1\f[tool:pytest]\faddopts=-x\n", False),
        ("pyproject.toml", "", "a = " + "[" * 900, False),
        ("pyproject.toml", "", "a = [\n" * 30_000, False),
        ("pyproject.toml", "", "a." * 20_000 + "b = 1", False),
        ("setup.cfg", "", "[a]\n" + "b = 1\n" * 50_000, False),
    ],
)
def test_settings_of_tests(name, old, new, same):
    assert same_test_settings(f"a/{name}", old.encode(), new.encode()) is same


def test_a_file_of_settings_that_is_gone():
    assert same_test_settings("setup.cfg", b"[metadata]\na=1\n", None)
    assert not same_test_settings("setup.cfg", b"[tool:pytest]\na=1\n", None)


def test_a_command_of_pytest():
    command = "PYTHONWARNINGS='a b' pytest -n 4 -rA --tb=no -p no:cacheprovider -W ignore::X"
    command += " -k 'a or b' -x --junitxml=x tests"
    row = msgspec.structs.replace(ROW, test_command=command)
    program, environment = program_of(row, {"top/test_b.py", "check_c.py"}, "/testbed")
    assert environment == {"PYTHONWARNINGS": "a b"}
    assert program["arguments"][:6] == ["-rA", "--tb=no", "-p", "no:cacheprovider", "-W", "ignore::X"]
    assert program["arguments"][-3:] == ["--rootdir=/testbed", "./top/test_b.py", "./check_c.py"]
    assert not program["as_module"]
    assert program_of(ROW, set(), "/testbed")[0]["as_module"]


def test_a_program_of_unittest():
    command = "LANG=C ./tests/runtests.py --verbosity 2"
    row = msgspec.structs.replace(ROW, runner="unittest", test_command=command, test_files=("tests/a/test_b.py",))
    program, _ = program_of(row, set(), "/testbed")
    assert program == {
        "script": "./tests/runtests.py",
        "arguments": ["--verbosity", "2", "a.test_b"],
        "as_module": False,
    }
    row = msgspec.structs.replace(row, test_command="bin/test -C", test_files=("a b/test_c.py",))
    assert shell_command(row) == "bin/test -C 'a b/test_c.py'"


def test_names_that_are_cut():
    wanted = Wanted(["a.py::t[x", "a.py::t[x y]", "a.py::u"])
    assert wanted.meant_by("a.py::t[x y]") == ["a.py::t[x y]", "a.py::t[x"]
    assert wanted.meant_by("a.py::t[x - z]") == ["a.py::t[x"]
    assert wanted.meant_by("a.py::t[y]") == []
    assert wanted.meant_by("a.py::u[y]") == []
    assert Wanted(["C.t[x y]"], "name").meant_by("d/a.py::C::t[x y]") == ["C.t[x y]"]


@pytest.mark.parametrize(
    ("outcomes", "resolved"),
    [
        ("passed passed passed", True),
        ("xfailed passed skipped", True),
        ("passed passed xfailed", True),
        ("passed failed passed", False),
        ("skipped passed passed", False),
        ("- passed passed", False),
        ("passed passed -", False),
        ("passed passed error", False),
        ("xpassed passed passed", False),
        ("passed timeout passed", False),
        ("passed passed crashed", False),
    ],
)
def test_what_outcomes_are_worth(outcomes, resolved):
    names = (*ROW.fail_to_pass, *ROW.pass_to_pass)
    found = {name: outcome for name, outcome in zip(names, outcomes.split(), strict=True) if outcome != "-"}
    report = Report(outcomes=found, complete=True, seconds=1.0)
    assert resolve(ROW, report).resolved is resolved
    assert not resolve(ROW, msgspec.structs.replace(report, tampering=("something",))).resolved


@pytest.mark.parametrize("path", sorted(Path(inside.__file__).parent.glob("*.py")), ids=lambda path: path.stem)
def test_what_runs_in_images_is_python_3_6(path):
    ast.parse(path.read_text(), feature_version=(3, 6))
