"""The environment of tests, made of real wheels, in a real sandbox: the project comes from the working tree."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from prorl.api import SandboxFault, SandboxSpec
from prorl.sandbox.bubblewrap import Bubblewrap
from prorl_swe.repository import environment
from prorl_swe.repository.cache import RepositoryCache
from prorl_swe.rows import CloneSource, Instance

PYPROJECT = """
[project]
name = "some-thing"
version = "3.4"
dependencies = ["six"]
[project.scripts]
thing = "thing:main"
[project.optional-dependencies]
test = ["pytest<7", "iniconfig==0.0.0", "there-is-surely-no-such-project-0"]
"""
LOOK = """
import importlib.metadata as m, sys, six, thing
print(thing.__file__, m.version("some-thing"), [e.name for e in m.entry_points(group="console_scripts")
                                                if e.value == "thing:main"], sys.prefix)
"""


def repository(folder: Path) -> str:
    (folder / "src").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "src" / "thing.py").write_text("value = 1\n")
    (folder / "test_thing.py").write_text("import thing\n\ndef test_thing():\n    assert thing.value == 2\n")
    who = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"], ["rev-parse", "HEAD"]):
        said = subprocess.check_output(["git", *who, *words], cwd=folder, text=True)
    return said.strip()


async def test_the_project_is_there_as_if_installed_in_place(tmp_path) -> None:
    runtime = Bubblewrap()
    if not (await runtime.probe()).works:
        pytest.skip("no bubblewrap")
    commit = await asyncio.to_thread(repository, tmp_path / "clone")
    instance = Instance(
        kind="pypi",
        instance_id="thing",
        repo="somebody/thing",
        version="3.4",
        base_commit=commit,
        problem_statement="",
        source=CloneSource(location=str(tmp_path / "clone"), commit=commit),
        fail_to_pass=("t",),
        pass_to_pass=(),
    )
    cache = RepositoryCache(tmp_path / "cache")
    try:
        lease = await cache.prepare(instance, SandboxSpec())
    except SandboxFault as fault:
        if fault.code == "environment":
            pytest.skip(f"no package index: {fault}")
        raise
    [stored] = [one for one in cache.store.list() if one.kind == "env"]
    assert stored.what.endswith("without there-is-surely-no-such-project-0"), "a pin without a wheel is loosened"
    with lease:
        sandbox = await runtime.start(lease.prepared.spec)
        try:

            async def run(command: str) -> tuple[int, str]:
                result = await sandbox.act("bash", {"command": command}, timeout=60)
                return result.data["exit_code"], result.output

            code, output = await run(f"(cd /tmp; {lease.prepared.python} -c '{LOOK}')")
            assert (code, output) == (0, f"/testbed/src/thing.py 3.4 ['thing'] {environment.AT}\n")
            assert (await run("python -m pytest -q -p no:cacheprovider"))[0] == 1
            assert (await run("echo value = 2 >src/thing.py; pytest -q -p no:cacheprovider"))[0] == 0
            assert (await run(f"touch {environment.AT}/x {environment.PROJECT_AT}/x"))[0] == 1
            assert (await run(f"grep -rI {tmp_path} {environment.AT}/bin {environment.AT}/pyvenv.cfg"))[0] == 1
        finally:
            await sandbox.stop(grace=0)


def test_the_rows_own_word_is_the_only_one() -> None:
    given = environment.wanted(["six"], ["mock"], ("trio",))
    assert given == environment.Wanted(required=(environment.PYTEST, "trio"))
    assert environment.wanted([], [], ("pytest==8.3.0",)).required == ("pytest==8.3.0",)
    found = environment.wanted(["six"], ["pytest<7", "mock", "six"], None)
    assert found == environment.Wanted(required=(environment.PYTEST, "six"), optional=("mock",))
    assert found.key() != given.key()
