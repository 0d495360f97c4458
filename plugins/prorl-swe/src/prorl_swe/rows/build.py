"""From the fields that SWE-bench's form and its descendants share to an :class:`Instance`.

Any row may say for itself, in fields of ours: ``test_command`` (or ``test_cmd``); ``source``, a table with ``type``
(``image``, ``clone`` or ``sdist``) and the fields of that source, so that a row can be pointed at a local clone; and
``requirements``, what a clone's or source distribution's tests need, as pip takes it.
"""

from __future__ import annotations

import posixpath
from typing import Any

import msgspec

from prorl_swe.rows.fields import (
    CONTROL,
    bad,
    read_commit,
    read_identifier,
    read_patch,
    read_repo,
    read_requirements,
    read_tests,
    read_text,
)
from prorl_swe.rows.instance import CloneSource, ImageSource, Instance, Kind, Source
from prorl_swe.rows.paths import patched_files, path_problem
from prorl_swe.rows.suites import Suite, suite_of

# What a test patch adds beside tests (SWE-bench's list): not to be given to a runner as a file of tests.
DATA = (".json", ".png", ".csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml")
MAX_COMMAND = 4096


def build(row: dict[str, Any], kind: Kind, source: Source, *, base_commit: str, suite: Suite | None = None) -> Instance:
    repo = read_repo("repo", row.get("repo"))
    suite = suite or suite_of(repo)
    f2p, p2p = read_tests(row, "FAIL_TO_PASS", "PASS_TO_PASS")
    test_patch = read_patch("test_patch", row.get("test_patch") or "", empty=True)
    gold = row.get("patch")
    return Instance(
        kind=kind,
        instance_id=read_identifier("instance_id", row.get("instance_id")),
        repo=repo,
        version=read_version(row.get("version")),
        base_commit=base_commit,
        problem_statement=read_text("problem_statement", row.get("problem_statement")),
        source=read_source(row, source, base_commit),
        fail_to_pass=f2p,
        pass_to_pass=p2p,
        test_patch=test_patch,
        gold_patch=read_patch("patch", gold) if gold else None,
        test_command=read_command(row) or suite.command,
        runner=suite.runner,
        log_format=suite.log_format,
        test_files=files_of_tests(test_patch, f2p),
    )


def files_of_tests(test_patch: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """The files of a test patch; without one, those that the names of tests begin with."""
    if test_patch:
        return tuple(path for path in patched_files(test_patch) if not path.endswith(DATA))
    files = (name.partition("::")[0] for name in names if "::" in name)
    return tuple(dict.fromkeys(path for path in files if path_problem(path) is None))


def read_version(value: object) -> str:
    if value is None or isinstance(value, int | float):
        return "" if value is None else str(value)
    return read_text("version", value, empty=True, limit=100)


def read_command(row: dict[str, Any]) -> str | None:
    for field in ("test_command", "test_cmd"):
        if row.get(field):
            return check_command(field, row[field])
    return None


def check_command(field: str, value: object) -> str:
    """One line for a shell; of a list of them, one after the other."""
    if isinstance(value, list):
        return " && ".join(check_command(f"{field}[{index}]", part) for index, part in enumerate(value))
    command = read_text(field, value, limit=MAX_COMMAND).strip()
    if CONTROL.search(command):
        raise bad(field, "must be one line for a shell", command)
    return command


def read_source(row: dict[str, Any], source: Source, commit: str) -> Source:
    given = row.get("source")
    if isinstance(given, dict):
        source = check_source(given, commit)
    if row.get("requirements") is None:
        return source
    if isinstance(source, ImageSource):
        raise bad("requirements", "must be left out where the repository comes in an image", row["requirements"])
    return msgspec.structs.replace(source, requirements=read_requirements("requirements", row["requirements"]))


def check_source(given: dict[str, Any], commit: str) -> Source:
    table = {"commit": commit, **given} if given.get("type") == "clone" else given
    try:
        source: Source = msgspec.convert(table, Source)
    except msgspec.ValidationError as error:
        raise bad("source", f"must be a table with type image, clone or sdist ({error})", given) from None
    for name in ("reference", "path", "activate", "location", "project", "version", "filename", "sha256"):
        text = getattr(source, name, "x")
        if CONTROL.search(text) or (not text and name != "activate"):
            raise bad(f"source.{name}", "must be one line that is not empty", text)
    if isinstance(source, CloneSource):
        read_commit("source.commit", source.commit)
    if isinstance(source, ImageSource) and posixpath.normpath(source.path) != source.path:
        raise bad("source.path", "must be a plain path in the image", source.path)
    return source
