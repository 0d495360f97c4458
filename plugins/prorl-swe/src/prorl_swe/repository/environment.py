"""The environment that a project's tests run in: a virtual environment of wheels, shown read-only to every sandbox.

It is used at another path than the one it was made at, so the paths in its files are those of the sandbox. The project
itself is not in it: a line in site-packages has Python look in a folder that is a base's own (project.py).
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from prorl.api.errors import SandboxFault
from prorl.host.run import Finished, run
from prorl_swe.repository.base import open_up
from prorl_swe.repository.pipsettings import PipSettings

AT = "/opt/prorl-swe/env"
PROJECT_AT = "/opt/prorl-swe/project"
PYTHON_AT = f"{AT}/bin/python"
VENV = "venv"
PYTEST = "pytest>=8.3"
FORMAT = 1
TIMEOUT = 1800.0
NOT_PASSED_ON = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "PIP_TARGET", "PIP_PREFIX", "PIP_USER")
MAX_TEXT = 1 << 20


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """``required`` must be there; of ``optional`` what has a wheel for this Python."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()

    def key(self) -> str:
        content = [FORMAT, sys.version, platform.machine(), platform.libc_ver(), sys.base_prefix, self]
        return hashlib.sha256(msgspec.json.encode(content)).hexdigest()[:32]


def wanted(required: Iterable[str], optional: Iterable[str], given: Sequence[str] | None) -> Wanted:
    """``given`` is the row's own word, and then the only one. pytest's version is ours to say where the row does not:
    results are reported by a plugin that needs a recent one.
    """
    if given is not None:
        has_pytest = any(_name(text) == "pytest" for text in given)
        return Wanted(required=tuple(sorted({*given, *([] if has_pytest else [PYTEST])})))
    must = {text for text in required if _name(text) != "pytest"}
    may = {text for text in optional if _name(text) != "pytest"}
    return Wanted(required=tuple(sorted({*must, PYTEST})), optional=tuple(sorted(may - must)))


async def make(wanted: Wanted, part: Path, lock: int) -> str:
    """See :data:`prorl_swe.repository.store.Make`."""
    venv = part / VENV
    await _run([sys.executable, "-I", "-m", "venv", "--without-pip", str(venv)], lock)
    installer = Installer(venv, lock)
    left_out = await _install(installer, wanted)
    site = next((venv / "lib").glob("python*/site-packages"))
    (site / "prorl_swe.pth").write_text(f"import site; site.addsitedir({PROJECT_AT!r})\n")
    await asyncio.to_thread(_move, venv)
    compile_all = ["-m", "compileall", "-q", "-s", str(venv), "-p", AT, str(site)]
    await run([str(venv / "bin" / "python"), "-I", *compile_all], env=_environment(), timeout=TIMEOUT, on_line=_ignore)
    await asyncio.to_thread(open_up, part)
    packages = len(list(site.glob("*.dist-info")))
    without = f"; without {', '.join(left_out)}" if left_out else ""
    return f"Python {platform.python_version()}, {packages} packages{without}"


class Installer:
    """uv where there is one, else pip; wheels alone, so nobody's code is run."""

    def __init__(self, venv: Path, lock: int) -> None:
        self._venv = venv
        self._lock = lock
        self._settings = PipSettings.read()

    async def install(self, requirements: Sequence[str]) -> str | None:
        """``None``, or why it failed."""
        done = await self._run(requirements, ["--no-compile"] if self._uv() is None else ["--link-mode", "copy"])
        return None if done.code == 0 else done.tail

    async def has(self, requirement: str) -> bool:
        """Whether there is a wheel of it for this Python."""
        return (await self._run([requirement], ["--dry-run", "--no-deps"])).code == 0

    async def _run(self, requirements: Sequence[str], options: Sequence[str]) -> Finished:
        file = self._venv.parent / "requirements.txt"
        file.write_text("".join(f"{text}\n" for text in requirements))
        python = str(self._venv / "bin" / "python")
        uv = self._uv()
        if uv is not None:
            argv = [uv, "--no-progress", "pip", "install", "--python", python]
        elif importlib.util.find_spec("pip") is not None:
            argv = [sys.executable, "-m", "pip", "--python", python, "install", "--no-input"]
        else:
            raise SandboxFault("neither uv nor pip is there to install what tests need: pip install uv", code="missing")
        argv += ["--only-binary", ":all:", *options, "-r", str(file)]
        env = _environment() | (self._settings.for_uv(os.environ) if uv else {})
        try:
            # In a folder of its own: uv reads the settings of the project it is called in.
            return await run(argv, env=env, timeout=TIMEOUT, on_line=_ignore, cwd=self._venv.parent, locks=[self._lock])
        except TimeoutError as error:
            what = f"installing took longer than {TIMEOUT:g} s: {', '.join(requirements)}"
            raise SandboxFault(what, code="environment") from error
        finally:
            file.unlink(missing_ok=True)

    @staticmethod
    def _uv() -> str | None:
        return shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}")


async def _install(installer: Installer, wanted: Wanted) -> list[str]:
    """Returns what was left out. Raises :class:`SandboxFault` when what is required cannot be had."""
    failure = await installer.install([*wanted.required, *wanted.optional])
    if failure is None:
        return []
    kept, left_out = [], []
    for text in wanted.optional:
        loose = _loosened(text)
        if await installer.has(text):
            kept.append(text)
        elif loose != text and await installer.has(loose):
            kept.append(loose)
        else:
            left_out.append(text)
    loosened = [_loosened(text) for text in kept]
    for attempt, missing in ((kept, left_out), (loosened, left_out), ([], [*wanted.optional])):
        failure = await installer.install([*wanted.required, *attempt])
        if failure is None:
            return missing
    raise SandboxFault(f"what the tests need cannot be installed: {failure}", code="environment")


def _loosened(text: str) -> str:
    """Any version of it."""
    requirement = Requirement(text)
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{f'; {requirement.marker}' if requirement.marker else ''}"


def _name(text: str) -> str:
    return canonicalize_name(Requirement(text).name)


def _move(venv: Path) -> None:
    """Have its text files say where it will be seen."""
    here = os.fsencode(venv)
    for path in ((venv / "pyvenv.cfg"), *(venv / "bin").iterdir()):
        if path.is_file() and not path.is_symlink() and path.stat().st_size < MAX_TEXT:
            content = path.read_bytes()
            if here in content and b"\0" not in content:
                path.write_bytes(content.replace(here, AT.encode()))


async def _run(argv: Sequence[str], lock: int) -> None:
    done = await run(argv, env=_environment(), timeout=TIMEOUT, on_line=_ignore, locks=[lock])
    if done.code != 0:
        raise SandboxFault(f"no environment for the tests: {done.tail}", code="environment")


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in NOT_PASSED_ON}


def _ignore(_: str) -> None:
    """The last lines are kept for whoever has to say why it failed."""
