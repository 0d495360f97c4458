"""R2E-Gym: a commit of a repository, tests made for it, and what each came to once the commit was in.

The image has the repository at the commit's parent, changed a little so that it runs at all (its working tree is the
base, whatever git says), an environment in ``.venv``, and the tests, which are taken away from the agent; the row has
them too, and they are put into ``r2e_tests`` for grading. Tests go by their name without their file. R2E-Gym itself
wants every outcome to be the recorded one, failures among them; here those that had passed are to pass, and the rest is
not judged.
"""

from __future__ import annotations

import re
from typing import Any

from prorl_swe.grading.logs import read_log
from prorl_swe.rows.build import files_of_tests, read_command, read_source
from prorl_swe.rows.fields import (
    MAX_PATCH,
    MAX_TESTS,
    bad,
    no_tests,
    read_commit,
    read_identifier,
    read_table,
    read_text,
    read_texts,
)
from prorl_swe.rows.images import Images, read_image, reference
from prorl_swe.rows.instance import ImageSource, Instance
from prorl_swe.rows.paths import path_problem

FOLDER = "r2e_tests"
# Where the images of R2E-Gym have their tests.
HIDDEN = ("/r2e_tests", "/root/r2e_tests", "/root/run_tests.sh", "/testbed/r2e_tests", "/testbed/run_tests.sh")
WARNINGS = "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning'"
# Orange3 tests windows.
DISPLAYS = {"orange3": "QT_QPA_PLATFORM=minimal xvfb-run --auto-servernum "}
OWN_RUNNER = "unittest_custom_runner.py"
ACTIVATE = "export PATH=/testbed/.venv/bin:$PATH"
ANSI = re.compile(r"\x1b\[[0-9;]{0,32}m")
MAX_FILES = 100


def read_r2e_gym(row: dict[str, Any], images: Images) -> Instance:
    """R2E-Gym/R2E-Gym-Subset, -Lite, -V1."""
    repo = read_identifier("repo_name", row.get("repo_name") or row.get("repo"))
    name = read_image("docker_image", row.get("docker_image"))
    commit = read_commit("commit_hash", row.get("commit_hash") or name.rpartition(":")[2])
    instance_id = read_identifier("instance_id", row.get("instance_id") or f"{repo}__{commit}")
    executed = read_table("execution_result_content", row.get("execution_result_content"))
    test_patch, own_runner = read_test_files(executed)
    required, kept = read_expected(row, executed)
    prefix = DISPLAYS.get(repo.lower(), "")
    program = f"{FOLDER}/{OWN_RUNNER}" if own_runner else f"-m pytest -rA {FOLDER}"
    source = ImageSource(reference=reference(images, "r2e-gym", instance_id, name), activate=ACTIVATE)
    statement = read_text("problem_statement", row.get("problem_statement"))
    issue = statement.partition("[ISSUE]")[2].rpartition("[/ISSUE]")[0].strip()
    return Instance(
        kind="r2e-gym",
        instance_id=instance_id,
        repo=repo,
        version="",
        base_commit="",
        problem_statement=issue or statement,
        source=read_source(row, source, ""),
        fail_to_pass=required,
        pass_to_pass=kept,
        test_patch=test_patch,
        test_command=read_command(row) or f"{WARNINGS} {prefix}python -W ignore {program}",
        runner="log" if own_runner else "pytest",
        match="name",
        log_format="r2e",
        test_files=() if own_runner else files_of_tests(test_patch, ()),  # its runner finds them itself
        hidden=HIDDEN,
    )


def read_expected(row: dict[str, Any], executed: dict[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Those expected to pass: F2P if the log from before the commit does not have them as passed, or P2P."""
    expected = read_table("expected_output_json", row.get("expected_output_json"))
    named = {ANSI.sub("", name): outcome for name, outcome in expected.items()}
    passing = [name for name, outcome in named.items() if outcome == "PASSED" and name]
    passing = list(read_texts("expected_output_json", passing, limit=MAX_TESTS))
    log = executed.get("old_commit_res_stdout")
    before = read_log("r2e", read_text("old_commit_res_stdout", log, empty=True, limit=MAX_PATCH)) if log else {}
    required = tuple(name for name in passing if before.get(name) != "passed")
    if not required:
        raise no_tests("expected_output_json: what it says passed passed before the commit, too, so it")
    return required, tuple(name for name in passing if before.get(name) == "passed")


def read_test_files(executed: dict[str, Any]) -> tuple[str, bool]:
    """A patch that adds the tests, and whether they are run by a program among them."""
    names, codes = executed.get("test_file_names"), executed.get("test_file_codes")
    where = "execution_result_content.test_file_names"
    if not isinstance(names, list) or not isinstance(codes, list) or len(names) != len(codes) or not names:
        raise bad(where, "must be a list of file names, as many as there are test_file_codes", names)
    if len(names) > MAX_FILES:
        raise bad(where, f"must have at most {MAX_FILES} entries", len(names))
    parts = []
    own_runner = False
    for index, (name, code) in enumerate(zip(names, codes, strict=True)):
        text = read_text(f"{where}[{index}]", name, limit=200)
        path = text if text.startswith(f"{FOLDER}/") else f"{FOLDER}/{text}"
        if (problem := path_problem(path)) or re.search(r"[\s\"\\]", path):
            raise bad(f"{where}[{index}]", f"must be a file's name: it {problem or 'has unusual characters'}", name)
        own_runner = own_runner or path == f"{FOLDER}/{OWN_RUNNER}"
        parts.append(added(path, read_text(f"test_file_codes[{index}]", code, empty=True, limit=MAX_PATCH)))
    return "".join(parts), own_runner


def added(path: str, text: str) -> str:
    """The patch of a new file, as ``git diff`` writes it."""
    head = f"diff --git a/{path} b/{path}\nnew file mode 100644\n"
    if not text:
        return f"{head}index 0000000..e69de29\n"
    lines = text.split("\n")
    ended = lines[-1] == ""
    lines = lines[:-1] if ended else lines
    body = "".join(f"+{line}\n" for line in lines)
    missing = "" if ended else "\\ No newline at end of file\n"
    return f"{head}--- /dev/null\n+++ b/{path}\n@@ -0,0 +1,{len(lines)} @@\n{body}{missing}"
