"""The data sets' own row forms, each by the fields that tell it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from prorl.api import TaskFault
from prorl_swe.rows.fields import (
    CONTROL,
    bad,
    read_commit,
    read_identifier,
    read_patch,
    read_repo,
    read_tests,
    read_text,
    read_texts,
)
from prorl_swe.rows.images import DEFAULT_IMAGE, Images, read_image, reference
from prorl_swe.rows.instance import CloneSource, ImageSource, Instance, Kind, SdistSource, Source
from prorl_swe.rows.paths import patched_files
from prorl_swe.rows.suites import suite_of

KindSetting = Literal["auto"] | Kind
# The environment of the repository in images built by SWE-bench's harness and those derived from it.
CONDA = "source /opt/miniconda3/bin/activate && conda activate testbed"
SDIST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}\.(?:tar\.gz|tar\.bz2|zip)")
PINNED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,99})==([A-Za-z0-9][A-Za-z0-9.!+_-]{0,99})")
SHA256 = re.compile(r"[0-9a-f]{64}")


def read_row(row: dict[str, Any], kind: KindSetting = "auto", images: Images = DEFAULT_IMAGE) -> Instance:
    """The task of a row. ``kind="auto"`` goes by the fields; ``images`` says where images are.

    Raises ``TaskFault`` (``bad_row``) that names the field, and ``GraderFault`` (``no_tests``) for a row without tests.
    """
    found = detect(row) if kind == "auto" else kind
    return READERS[found](row, images)


def detect(row: dict[str, Any]) -> Kind:
    for kind, fields in FIELDS.items():
        if all(row.get(field) is not None for field in fields):
            return kind
    known = "; ".join(f"{kind}: {', '.join(fields)}" for kind, fields in FIELDS.items())
    raise TaskFault(
        f"not a row of a known form ({known}); it has {', '.join(sorted(map(str, row))) or 'nothing'}", code="bad_row"
    )


def read_pypi(row: dict[str, Any], images: Images) -> Instance:
    """Source distributions: ``sdist`` and ``sdist_sha256``, and ``base_commit`` as PROJECT==VERSION."""
    del images
    pinned = PINNED.fullmatch(read_text("base_commit", row.get("base_commit")))
    if not pinned:
        raise bad("base_commit", "must be PROJECT==VERSION", row.get("base_commit"))
    filename, sha256 = row.get("sdist"), row.get("sdist_sha256")
    if not isinstance(filename, str) or not SDIST.fullmatch(filename):
        raise bad("sdist", "must be the file name of a source distribution (.tar.gz)", filename)
    if not isinstance(sha256, str) or not SHA256.fullmatch(sha256):
        raise bad("sdist_sha256", "must be 64 hexadecimal digits", sha256)
    source = SdistSource(project=pinned[1], version=pinned[2], filename=filename, sha256=sha256)
    return build(row, "pypi", source, base_commit=pinned[0])


def read_swe_bench(row: dict[str, Any], images: Images) -> Instance:
    """princeton-nlp/SWE-bench, _Lite and _Verified. Its images: ``swebench/sweb.eval.x86_64.`` and the id."""
    instance_id = read_identifier("instance_id", row.get("instance_id"))
    name = row.get("image_name") or row.get("image")
    if name is None:
        name = f"swebench/sweb.eval.x86_64.{instance_id.lower().replace('__', '_1776_')}:latest"
    image = ImageSource(reference=reference(images, "swe-bench", instance_id, read_image("image_name", name)))
    image = msgspec.structs.replace(image, activate=CONDA)
    return build(row, "swe-bench", image, base_commit=read_commit("base_commit", row.get("base_commit")))


def build(row: dict[str, Any], kind: Kind, source: Source, *, base_commit: str) -> Instance:
    """What SWE-bench's fields say in every data set that has them, and what any row may override."""
    repo = read_repo("repo", row.get("repo"))
    suite = suite_of(repo)
    f2p, p2p = read_tests(row, "FAIL_TO_PASS", "PASS_TO_PASS")
    test_patch = read_patch("test_patch", row.get("test_patch") or "", empty=True)
    gold = row.get("patch")
    command = read_command(row)
    return Instance(
        kind=kind,
        instance_id=read_identifier("instance_id", row.get("instance_id")),
        repo=repo,
        version=read_text("version", str(row.get("version") or ""), empty=True, limit=100),
        base_commit=base_commit,
        problem_statement=read_text("problem_statement", row.get("problem_statement")),
        source=read_source(row, source, base_commit),
        fail_to_pass=f2p,
        pass_to_pass=p2p,
        test_patch=test_patch,
        gold_patch=read_patch("patch", gold) if gold else None,
        test_command=command or suite.command,
        runner=suite.runner,
        log_format=suite.log_format,
        test_files=patched_files(test_patch),
    )


def read_command(row: dict[str, Any]) -> str | None:
    for field in ("test_command", "test_cmd"):
        if row.get(field):
            command = read_text(field, row[field], limit=4096)
            if CONTROL.search(command):
                raise bad(field, "must be one line for a shell", command)
            return command.strip()
    return None


def read_source(row: dict[str, Any], source: Source, commit: str) -> Source:
    """The row's own ``source`` in place of its data set's, and its ``requirements``, which images have in them."""
    given = row.get("source")
    if isinstance(given, dict):
        table = {"commit": commit, **given} if given.get("type") == "clone" else given
        try:
            source = msgspec.convert(table, Source)
        except msgspec.ValidationError as error:
            raise bad("source", f"must be a table with type image, clone or sdist ({error})", given) from None
        if isinstance(source, CloneSource):
            read_commit("source.commit", source.commit)
    if row.get("requirements") is None:
        return source
    if isinstance(source, ImageSource):
        raise bad("requirements", "must be left out where the repository comes in an image", row["requirements"])
    return msgspec.structs.replace(source, requirements=read_texts("requirements", row["requirements"]))


READERS: dict[Kind, Callable[[dict[str, Any], Images], Instance]] = {
    "pypi": read_pypi,
    "swe-bench": read_swe_bench,
}
FIELDS: dict[Kind, tuple[str, ...]] = {
    "pypi": ("sdist", "sdist_sha256", "FAIL_TO_PASS"),
    "swe-bench": ("instance_id", "repo", "base_commit", "problem_statement", "test_patch", "FAIL_TO_PASS"),
}
