"""What the process of tests is told to run: a row's own command, taken apart, with the named tests' files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Set as AbstractSet
from typing import Any

from prorl_swe.grading.protected import test_files
from prorl_swe.rows.instance import Instance

ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
PYTEST = re.compile(r"(?:.*/)?(?:py\.test|pytest)\Z")
# Their value is another word.
WITH_VALUE = frozenset(
    [
        "-c",
        "-p",
        "-W",
        "-o",
        "-r",
        "--override-ini",
        "--tb",
        "--color",
        "--maxfail",
        "--basetemp",
        "--import-mode",
        "--confcutdir",
        "--log-level",
    ]
)
# What chooses tests, reports elsewhere, or runs them in other processes: the named tests are chosen and seen by us.
NOT_OURS = frozenset(
    ["-k", "-m", "-n", "--dist", "--numprocesses", "--junitxml", "--junit-xml", "--rootdir", "--deselect", "--ignore"]
)
OUR_OPTIONS = ("--continue-on-collection-errors", "--maxfail=0", "-p", "no:cacheprovider", "-p", "no:randomly")


def program_of(instance: Instance, files: AbstractSet[str], worktree: str) -> tuple[dict[str, Any], dict[str, str]]:
    """``(program, environment)``; ``files`` are those of the tree that is tested."""
    words = shlex.split(instance.test_command)
    environment = {}
    while words and ASSIGNMENT.fullmatch(words[0]):
        name, _, environment[name] = words.pop(0).partition("=")
    if instance.runner == "unittest":
        script = next((index for index, word in enumerate(words) if word.endswith(".py")), None)
        if script is not None:
            arguments = [*words[script + 1 :], *map(_label, instance.test_files)]
            return {"script": words[script], "arguments": arguments, "as_module": False}, environment
        return {"script": None, "arguments": [], "as_module": True}, environment
    start = next((index for index, word in enumerate(words) if PYTEST.fullmatch(word)), len(words))
    as_module = words[max(0, start - 1) : start] == ["-m"]
    wanted = test_files(instance) or list(instance.test_files)
    there = [path for path in wanted if path in files or any(file.startswith(f"{path}/") for file in files)]
    arguments = [*_options(words[start + 1 :]), *OUR_OPTIONS, f"--rootdir={worktree}", *(f"./{path}" for path in there)]
    return {"script": None, "arguments": arguments, "as_module": as_module}, environment


def shell_command(instance: Instance) -> str:
    return " ".join([instance.test_command, *map(shlex.quote, instance.test_files)])


def _options(words: list[str]) -> list[str]:
    kept: list[str] = []
    words = list(words)
    while words:
        word = words.pop(0)
        if word.partition("=")[0] in NOT_OURS:
            if "=" not in word and words:
                words.pop(0)
        elif word in WITH_VALUE and words:
            kept += [word, words.pop(0)]
        elif word.startswith("-") and word != "--" and word not in ("-x", "--exitfirst", "--lf", "--ff", "--sw"):
            kept.append(word)
    return kept


def _label(path: str) -> str:
    """A file of Django's tests as its runner names it."""
    return path.removeprefix("tests/").removesuffix(".py").replace("/", ".")
