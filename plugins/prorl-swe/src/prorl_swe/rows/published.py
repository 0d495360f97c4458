"""SWE-bench and the data sets that took over its form, and source distributions of the package index in that form."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from prorl_swe.rows.build import build, check_command
from prorl_swe.rows.fields import bad, read_commit, read_identifier, read_table, read_text
from prorl_swe.rows.images import Images, read_image, reference
from prorl_swe.rows.instance import ImageSource, Instance, Kind, SdistSource
from prorl_swe.rows.suites import ENVIRONMENTS, Suite, suite_of

# The environment of the repository in images built by SWE-bench's harness and those derived from it.
CONDA = "source /opt/miniconda3/bin/activate && conda activate testbed"
SDIST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}\.(?:tar\.gz|tar\.bz2|zip)")
PINNED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,99})==([A-Za-z0-9][A-Za-z0-9.!+_-]{0,99})")
SHA256 = re.compile(r"[0-9a-f]{64}")
# Who publishes the images of rows that name none, and what two underscores of the id are in their names.
PUBLISHERS: dict[Kind, tuple[str, str]] = {
    "swe-bench": ("swebench", "_1776_"),
    "swe-gym": ("xingyaoww", "_s_"),
    "swe-rebench": ("swerebench", "_1776_"),
}
# The readers that SWE-rebench's ``install_config.log_parser`` names, in our words.
PARSERS = {
    "parse_log_pytest": "pytest",
    "parse_log_pytest_options": "pytest-options",
    "parse_log_pytest_v2": "pytest-v2",
    "parse_log_pytest_v3": "pytest-v2",
    "parse_log_seaborn": "seaborn",
    "parse_log_matplotlib": "matplotlib",
    "parse_log_django": "django",
    "parse_log_sympy": "sympy",
}


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
    """princeton-nlp/SWE-bench, _Lite and _Verified (and SWE-bench/…, the same). Its images:
    ``swebench/sweb.eval.x86_64.`` and the id with ``_1776_`` for ``__``, in lower case."""
    return from_image(row, "swe-bench", images, suite_of(str(row.get("repo"))))


def read_swe_gym(row: dict[str, Any], images: Images) -> Instance:
    """SWE-Gym/SWE-Gym and SWE-Gym-Lite. Its images: ``xingyaoww/sweb.eval.x86_64.`` and the id with ``_s_``."""
    return from_image(row, "swe-gym", images, suite_of(str(row.get("repo"))))


def read_swe_rebench(row: dict[str, Any], images: Images) -> Instance:
    """nebius/SWE-rebench, -leaderboard and the Python rows of -V2: the command and the log's reader are in
    ``install_config``, the image in ``image_name`` or ``docker_image``. ``requirements`` is a frozen list there, of use
    only where the row's ``source`` is a clone."""
    language = row.get("language")
    if language is not None and str(language).lower() != "python":
        raise bad("language", "must be python: other languages' tests cannot be run here", language)
    config = read_table("install_config", row.get("install_config") or {})
    suite = suite_of(str(row.get("repo")))
    if config.get("test_cmd"):
        suite = msgspec.structs.replace(suite, command=check_command("install_config.test_cmd", config["test_cmd"]))
    if parser := PARSERS.get(str(config.get("log_parser"))):
        suite = msgspec.structs.replace(suite, log_format=parser)
    source = row.get("source")
    requirements = row.get("requirements")
    if not isinstance(source, dict) or source.get("type") == "image":
        requirements = None
    elif isinstance(requirements, str):
        lines = (line.strip() for line in requirements.splitlines())
        # An address was good on the machine where the list was frozen.
        requirements = [line.partition(" @ ")[0] for line in lines if line and not line.startswith(("#", "-"))]
    row = {**row, "requirements": requirements}
    return from_image(row, "swe-rebench", images, suite)


def read_swe_smith(row: dict[str, Any], images: Images) -> Instance:
    """SWE-bench/SWE-smith: ``patch`` makes the bug, so it is part of the base, and the repair is the way back. The
    tests are the repository's own, at its base, where the agent can see them. ``repo`` is a mirror's name,
    ``swesmith/OWNER__NAME.COMMIT``, with one image for all its rows (``image_name``), whose working tree is patched."""
    name = image_of(row, "image_name")
    instance_id = read_identifier("instance_id", row.get("instance_id"))
    source = ImageSource(reference=reference(images, "swe-smith", instance_id, name), activate=CONDA)
    commit = read_commit("base_commit", row["base_commit"]) if row.get("base_commit") else ""
    instance = build(row, "swe-smith", source, base_commit=commit)
    if instance.gold_patch is None:
        raise bad("patch", "must be the patch that makes the bug", None)
    return msgspec.structs.replace(instance, base_patch=instance.gold_patch, gold_patch=None)


def from_image(row: dict[str, Any], kind: Kind, images: Images, suite: Suite) -> Instance:
    instance_id = read_identifier("instance_id", row.get("instance_id"))
    owner, underscores = PUBLISHERS[kind]
    derived = f"{owner}/sweb.eval.x86_64.{instance_id.lower().replace('__', underscores)}:latest"
    name = image_of(row, "image_name", "docker_image", "image", derived=derived)
    extra = ENVIRONMENTS.get(str(row.get("repo")).lower())
    source = ImageSource(
        reference=reference(images, kind, instance_id, name), activate=f"{CONDA} && {extra}" if extra else CONDA
    )
    return build(row, kind, source, base_commit=read_commit("base_commit", row.get("base_commit")), suite=suite)


def image_of(row: dict[str, Any], *fields: str, derived: str | None = None) -> str:
    """The image that the first of ``fields`` names, or else ``derived``."""
    for field in fields:
        if row.get(field):
            return read_image(field, row[field])
    return read_image(fields[0], derived)
