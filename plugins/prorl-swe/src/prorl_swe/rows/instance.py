"""A task as the rest of the package knows it, whichever data set its row came from.

A repository at its base commit, with a bug; a problem statement; tests that are hidden from the agent; and which of
them must pass in the end: F2P, those that failed before, and P2P, those that passed before and must not break.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["swe-bench", "swe-gym", "r2e-gym", "swe-smith", "swe-rebench", "pypi"]
# How the tests are run: by pytest or unittest with a reporter of ours, or by a program of the repository's own whose
# log is read afterwards ("log"; weaker, for what is printed can be forged).
Runner = Literal["pytest", "unittest", "log"]
# How named tests are compared with those that ran: by whole node id, or by name alone (R2E-Gym's expectations).
Match = Literal["id", "name"]


class ImageSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="image"):
    """A container image that holds the repository at ``path``, with all that its tests need. ``reference`` is what
    the sandbox layer takes: ``docker://NAME``, or the path of a SIF or an unpacked folder. ``activate`` is a line of
    shell that is run before anything of the repository is run (a conda environment).
    """

    reference: str
    path: str = "/testbed"
    activate: str = ""


class CloneSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="clone"):
    """A local git repository (a folder, bare or not) or a bundle, and the commit in it. ``requirements``: what its
    tests need, as pip takes it; ``None``: found out from its own metadata.
    """

    location: str
    commit: str
    requirements: tuple[str, ...] | None = None


class SdistSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="sdist"):
    """A source distribution from the package index, pinned by its hash; it becomes a repository of one commit."""

    project: str
    version: str
    filename: str
    sha256: str
    requirements: tuple[str, ...] | None = None


Source = ImageSource | CloneSource | SdistSource


class Instance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One task, checked.

    ``base_patch`` is applied to the source to make the base (SWE-smith's bug); ``test_patch`` before grading only
    (empty where the tests are in the base already). ``gold_patch`` never reaches a sandbox of the agent's.
    ``base_commit`` is empty where it is whatever the image has checked out. ``test_command`` is the row's own, or its
    repository's, with variables before it as literal values; node ids are appended by nobody: the runner picks the
    tests by name. ``log_format`` names the reader of its log, for ``runner="log"`` (:mod:`prorl_swe.grading.logs`).
    ``test_files``: files of the repository that hold the tests, for programs that take files and not names.
    ``hidden``: paths in the image that the agent must not see, for they hold the tests.
    ``fail_to_pass`` (F2P) must have passed in the end, ``pass_to_pass`` (P2P) must not have failed.
    """

    kind: Kind
    instance_id: str
    repo: str
    version: str
    base_commit: str
    problem_statement: str
    source: Source
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    base_patch: str = ""
    test_patch: str = ""
    gold_patch: str | None = None
    test_command: str = "python -m pytest"
    runner: Runner = "pytest"
    match: Match = "id"
    log_format: str | None = None
    test_files: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
