"""A row of every kind as its publisher writes it, shortened, and the image that each names."""

import json

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
