"""How a candidate's source becomes a program."""

from __future__ import annotations

import importlib.resources

from prorl_code.judge.program import Program

CANDIDATE = "solution.py"
PYTHON = ("python3", "-B", "-s")


def whole(source: str, output_file: str | None = None) -> Program:
    """The source is run as it stands."""
    return Program(
        files={CANDIDATE: source.encode("utf-8", "replace")},
        command=(*PYTHON, CANDIDATE),
        collect=(output_file,) if output_file else (),
    )


def called(source: str, function: str) -> Program:
    """A function of the source is called, bare or a method of its ``class Solution``."""
    driver = importlib.resources.files("prorl_code").joinpath("inside/call.py").read_bytes()
    return Program(
        files={CANDIDATE: source.encode("utf-8", "replace"), "call.py": driver},
        command=(*PYTHON, "call.py", function),
    )


def script(source: str, *arguments: str) -> Program:
    """A program of the row's: a checker or an interactor."""
    return Program(files={"program.py": source.encode()}, command=(*PYTHON, "program.py", *arguments))
