import contextlib
import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorl.api import ConfigError, GraderFault, TaskFault
from prorl_swe.rows import CloneSource, ImageSource, SdistSource, check_images, detect, read_row
from prorl_swe.rows.paths import patched_files, path_problem
from prorl_swe.rows.suites import SWE_BENCH, SWE_GYM
from prorl_swe.settings import SweTable

COMMIT = "d16bfe05a744909de4b27f5875fe0d4ed41ce607"
PATCH = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
TEST_PATCH = PATCH.replace("a.py", "tests/test_a.py")
BENCH = {
    "repo": "astropy/astropy",
    "instance_id": "astropy__astropy-12907",
    "base_commit": COMMIT,
    "patch": PATCH,
    "test_patch": TEST_PATCH,
    "problem_statement": "It is wrong.",
    "hints_text": "",
    "created_at": "2022-03-03T15:14:54Z",
    "version": "4.3",
    "FAIL_TO_PASS": '["tests/test_a.py::test_x"]',
    "PASS_TO_PASS": '["tests/test_a.py::test_y[a - b]"]',
    "environment_setup_commit": COMMIT,
}
GYM = {
    **{key: value for key, value in BENCH.items() if key != "environment_setup_commit"},
    "repo": "Project-MONAI/MONAI",
    "instance_id": "Project-MONAI__MONAI-1121",
    "FAIL_TO_PASS": ["tests/test_a.py::test_x"],
    "PASS_TO_PASS": [],
}
SKYRL = {"data_source": "swe-gym", "prompt": [{"role": "user", "content": "It."}], "ability": "coding", "instance": GYM}
REBENCH = {
    **GYM,
    "repo": "tox-dev/tox",
    "instance_id": "tox-dev__tox-3846",
    "docker_image": "swerebench/sweb.eval.x86_64.tox-dev_1776_tox-3846",
    "requirements": "# frozen\npluggy==1.5.0\n-e .\nvirtualenv @ file:///croot/virtualenv_1729\n",
    "environment": "name: testbed",
    "install_config": {
        "python": "3.9",
        "install": "pip install -e .[test]",
        "test_cmd": "pytest --no-header -rA --tb=line --color=no -p no:cacheprovider",
        "log_parser": "parse_log_pytest_v2",
    },
    "license_name": "MIT License",
    "meta": {"is_lite": True},
}
SMITH = {
    "instance_id": "oauthlib__oauthlib.1fd52536.combine_file__09vlzwgc",
    "repo": "swesmith/oauthlib__oauthlib.1fd52536",
    "patch": PATCH,
    "FAIL_TO_PASS": ["tests/oauth1/test_utils.py::UtilsTests::test_a"],
    "PASS_TO_PASS": ["tests/oauth2/test_utils.py::UtilsTests::test_b"],
    "created_at": "2025-01-01",
    "image_name": "jyangballin/swesmith.x86_64.oauthlib_1776_oauthlib.1fd52536",
    "problem_statement": "It is wrong.",
}
OLD_LOG = """\
= short test summary info =
PASSED r2e_tests/test_1.py::TestA::test_kept
FAILED r2e_tests/test_1.py::TestA::test_mended - assert 0
"""
R2E = {
    "repo_name": "orange3",
    "docker_image": "namanjain12/orange3_final:2d9617bd0cb1f0ba61771258410ab8fae8e7e24d",
    "commit_hash": "2d9617bd0cb1f0ba61771258410ab8fae8e7e24d",
    "parsed_commit_content": "{}",
    "execution_result_content": json.dumps(
        {
            "test_file_names": ["test_1.py", "conftest.py"],
            "test_file_codes": ["class TestA:\n    def test_kept(self): ...", ""],
            "old_commit_res_stdout": OLD_LOG,
        }
    ),
    "expected_output_json": json.dumps(
        {
            "TestA.test_kept": "PASSED",
            "\x1b[1mTestA.test_mended\x1b[0m": "PASSED",
            "TestA.test_new": "PASSED",
            "TestA.test_bad": "FAILED",
        }
    ),
    "problem_statement": "[ISSUE]\nIt is wrong.\n[/ISSUE]",
    "prompt": "Write an issue.",
}
PYPI = {
    **BENCH,
    "repo": "pypi/pyflakes",
    "instance_id": "pypi__pyflakes-3.0.0",
    "base_commit": "pyflakes==3.0.0",
    "sdist": "pyflakes-3.0.0.tar.gz",
    "sdist_sha256": "0" * 64,
    "test_cmd": "python -m pytest -rA pyflakes/test",
}
ROWS = {"swe-bench": BENCH, "swe-gym": GYM, "swe-rebench": REBENCH, "swe-smith": SMITH, "r2e-gym": R2E, "pypi": PYPI}
REFERENCES = {
    "swe-bench": "docker://swebench/sweb.eval.x86_64.astropy_1776_astropy-12907:latest",
    "swe-gym": "docker://xingyaoww/sweb.eval.x86_64.project-monai_s_monai-1121:latest",
    "swe-rebench": "docker://swerebench/sweb.eval.x86_64.tox-dev_1776_tox-3846:latest",
    "swe-smith": "docker://jyangballin/swesmith.x86_64.oauthlib_1776_oauthlib.1fd52536:latest",
    "r2e-gym": "docker://namanjain12/orange3_final:2d9617bd0cb1f0ba61771258410ab8fae8e7e24d",
}
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


def test_a_row_may_name_its_source():
    clone = read_row({**BENCH, "source": {"type": "clone", "location": "/repos/astropy"}, "requirements": ["numpy<2"]})
    assert clone.source == CloneSource(location="/repos/astropy", commit=COMMIT, requirements=("numpy<2",))
    image = read_row({**BENCH, "source": {"type": "image", "reference": "/images/a.sif", "path": "/repo"}})
    assert image.source == ImageSource(reference="/images/a.sif", path="/repo")
    assert read_row({**BENCH, "test_command": "python -m pytest -q"}).test_command == "python -m pytest -q"
    sdist = read_row({**PYPI, "requirements": ["pytest"]}).source
    assert sdist == SdistSource(
        project="pyflakes",
        version="3.0.0",
        filename="pyflakes-3.0.0.tar.gz",
        sha256="0" * 64,
        requirements=("pytest",),
    )


CLONE: dict[str, Any] = {**BENCH, "source": {"type": "clone", "location": "/repos/astropy"}}


def named(**source: str) -> dict[str, Any]:
    return {**BENCH, "source": source}


@pytest.fixture
def places(tmp_path):
    """``repos`` is allowed and ``private`` is not; each leads to the other by a link."""
    for folder, other in (("repos", "private"), ("private", "repos")):
        (tmp_path / folder / "git").mkdir(parents=True)
        (tmp_path / folder / "link").symlink_to(tmp_path / other / "git")
    return tmp_path


def test_a_path_below_an_allowed_folder_is_used_with_its_links_followed(places):
    sources = [str(places / "repos"), "docker://ghcr.io/me/"]
    inside = str(places / "repos" / "git")
    for location in (inside, str(places / "private" / "link"), str(places / "repos" / "x" / ".." / "git")):
        assert read_row(named(type="clone", location=location), sources=sources).source.location == inside
    assert read_row(named(type="image", reference=inside), sources=sources).source.reference == inside
    image = "docker://ghcr.io/me/astropy:1"
    assert read_row(named(type="image", reference=image), sources=sources).source.reference == image
    linked = [str(places / "private" / "link")]
    assert read_row(named(type="clone", location=inside), sources=linked).source.location == inside


@pytest.mark.parametrize(
    "path", ["private/git", "private/nothing", "repos/link", "repos/../private/git", "repository", "repos-of-mine/git"]
)
def test_a_path_elsewhere_is_refused_whether_or_not_there_is_anything(places, path):
    (places / "repos-of-mine" / "git").mkdir(parents=True)
    for row in (named(type="clone", location=f"{places}/{path}"), named(type="image", reference=f"{places}/{path}")):
        for wrapped in (row, {"instance": BENCH, "source": row["source"]}):
            with pytest.raises(TaskFault) as caught:
                read_row(wrapped, sources=[str(places / "repos")])
            assert caught.value.code == "source_refused"
            said = str(caught.value).replace(f"{places}/{path}", "PATH").replace(str(places), "")
            assert said == (
                "source: this server opens no 'PATH' for a row, only what is in /repos: "
                "put it there, or have the server's owner add its folder to [swe] sources"
            )


@pytest.mark.parametrize(
    "reference",
    [
        "docker://ghcr.io/me/../you/x",
        "docker://ghcr.io/me-too/x",
        "docker://ghcr.io/me",
        "docker://docker.io/x",
        "def:/repos/x.def.j2",
        "repos/x",
        "/",
    ],
)
def test_an_image_that_is_not_of_an_allowed_owner_is_refused(reference):
    with pytest.raises(TaskFault, match="opens no"):
        read_row(named(type="image", reference=reference), sources=["/repos", "docker://ghcr.io/me"])


def test_what_no_row_names_is_no_rows_word(places):
    """The images of rows are where the setting says, and source distributions come from the owner's own index."""
    assert read_row(BENCH, images="/images/{file}.sif", sources=[]).source.reference.startswith("/images/")
    sdist = {"type": "sdist", "project": "a", "version": "1", "filename": "a-1.tar.gz", "sha256": "0" * 64}
    assert read_row({**BENCH, "source": sdist}, sources=[]).source.project == "a"
    with pytest.raises(TaskFault, match="no place at all"):
        read_row(CLONE, sources=[])


@pytest.mark.parametrize("place", ["repos", "", "docker://", "docker:///", "https://host.example/x"])
def test_a_source_that_cannot_work_stops_the_start(place):
    with pytest.raises(msgspec.ValidationError, match="neither the absolute path of a folder nor docker://"):
        msgspec.convert({"sources": [place]}, SweTable)


@pytest.mark.parametrize(
    ("images", "reference"),
    [
        ("docker://mirror.example:5000/{image}", "docker://mirror.example:5000/" + REFERENCES["swe-bench"][9:]),
        ({"swe-bench": "/images/{instance_id}.sif"}, "/images/astropy__astropy-12907.sif"),
        ({"swe-gym": "/images/{instance_id}.sif"}, REFERENCES["swe-bench"]),
        ("/images/{file}.sif", "/images/swebench_sweb.eval.x86_64.astropy_1776_astropy-12907_latest.sif"),
        ("docker://me/{id_1776}:v1", "docker://me/astropy_1776_astropy-12907:v1"),
        ("docker://me/{id_s}:v1", "docker://me/astropy_s_astropy-12907:v1"),
    ],
)
def test_images_go_where_the_template_says(images, reference):
    check_images(images)
    assert read_row(BENCH, images=images).source.reference == reference


@pytest.mark.parametrize("images", ["docker://{name}", "", {"swe": "docker://{image}"}, {"swe-gym": "{}"}])
def test_a_template_that_cannot_work_is_refused(images):
    with pytest.raises(ConfigError):
        check_images(images)


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


def test_a_row_without_tests_cannot_be_judged():
    with pytest.raises(GraderFault) as caught:
        read_row({**BENCH, "FAIL_TO_PASS": "[]"})
    assert caught.value.code == "no_tests"
    passed = OLD_LOG.replace("FAILED", "PASSED")
    before = json.loads(R2E["execution_result_content"]) | {"old_commit_res_stdout": passed}
    expected = {"TestA.test_kept": "PASSED"}
    with pytest.raises(GraderFault):
        read_row({**R2E, "execution_result_content": before, "expected_output_json": expected})


def test_a_count_that_a_log_left_behind_is_no_test():
    assert read_row({**BENCH, "PASS_TO_PASS": ["[100%]", "a::b", "[ 50%]"]}).pass_to_pass == ("a::b",)


def test_an_unknown_row_says_what_rows_there_are():
    with pytest.raises(TaskFault, match="swe-rebench: instance_id"):
        read_row({"question": "?"})
    with pytest.raises(TaskFault, match="not a kind of row"):
        read_row(BENCH, "swe-lancer")


def test_what_stands_twice_is_kept_once():
    instance = read_row({**BENCH, "FAIL_TO_PASS": ["a::b", "a::b"], "PASS_TO_PASS": ["a::b", "a::c", "a::c"]})
    assert (instance.fail_to_pass, instance.pass_to_pass) == (("a::b",), ("a::c",))


def test_files_of_a_patch_are_those_in_headers_only():
    patch = (
        'diff --git "a/t\\303\\251st.py" "b/t\\303\\251st.py"\n--- "a/t\\303\\251st.py"\n+++ "b/t\\303\\251st.py"\n'
        "@@ -1,2 +1,3 @@\n a\n--- a/not_a_file.py\n+++ b/nor_this.py\n+x\n"
        "diff --git a/old name.py b/new name.py\nsimilarity index 100%\n"
        "rename from old name.py\nrename to new name.py\n"
        "diff --git a/i.png b/i.png\nnew file mode 100644\nindex 0000000..1111111\nGIT binary patch\nliteral 0\n"
        "HcmV?d00001\n"
    )
    assert patched_files(patch) == ("tést.py", "old name.py", "new name.py", "i.png")


@pytest.mark.parametrize(
    ("path", "good"),
    [
        ("a/b.py", True),
        ("..a/b", True),
        ("", False),
        ("/a", False),
        ("a/../b", False),
        ("a//b", False),
        ("./a", False),
        ("a/.GIT/config", False),
        ("a\nb", False),
        ("a" * 2000, False),
    ],
)
def test_paths_that_may_be_used(path, good):
    assert (path_problem(path) is None) == good


@given(st.text(max_size=2000))
@settings(deadline=None)
def test_no_text_upsets_the_reader_of_patches(text):
    for path in patched_files(text):
        path_problem(path)


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
