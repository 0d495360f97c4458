"""git on the host, over repositories that nobody vouches for: no configuration but ours, no hooks, no network.

The commits that are made here are made by nobody at a fixed time, so that the same content has the same id everywhere.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from prorl.api.errors import SandboxFault
from prorl.host.run import run

WHEN = 1_577_836_800  # 2020-01-01, of commits and of every file of a base
TIMEOUT = 600.0
SETTINGS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null",
    "core.autocrlf": "false",
    "core.fileMode": "true",
    "core.symlinks": "true",
    "core.logAllRefUpdates": "false",
    "commit.gpgSign": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "init.defaultBranch": "main",
    "protocol.allow": "never",
    "protocol.file.allow": "always",
    "safe.directory": "*",
}


class GitError(Exception):
    """git said no; the message is what it printed last."""


class Git:
    """git in one folder. ``lock`` is a descriptor that every git holds until it has ended."""

    def __init__(self, folder: Path, lock: int) -> None:
        self._folder = folder
        self._lock = lock

    async def __call__(self, *arguments: str) -> list[str]:
        """Its output, by lines. Raises :class:`GitError`, and :class:`SandboxFault` where there is no git."""
        program = find_git()
        settings = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
        lines: list[str] = []
        try:
            done = await run(
                [program, *settings, *arguments],
                env=_environment(self._folder),
                timeout=TIMEOUT,
                on_line=lines.append,
                cwd=self._folder,
                locks=[self._lock],
            )
        except TimeoutError as error:
            raise GitError(f"git {arguments[0]} took longer than {TIMEOUT:g} s") from error
        if done.code != 0:
            raise GitError(f"git {arguments[0]}: {done.tail.strip() or f'exit code {done.code}'}")
        return lines


def find_git() -> str:
    found = shutil.which("git")
    if found is None:
        raise SandboxFault("there is no git on PATH, and prorl-swe needs it: install git", code="missing")
    return found


def _environment(home: Path) -> dict[str, str]:
    someone = {"NAME": "base", "EMAIL": "base@localhost", "DATE": f"@{WHEN} +0000"}
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home.parent),
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CEILING_DIRECTORIES": str(home.parent),
        **{f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in someone.items()},
    }


def inside_environment(extra: Sequence[tuple[str, str]] = ()) -> dict[str, str]:
    """For a sandbox: git works there whoever the files belong to, does not take the times of another machine for
    changes, and has somebody to commit as.
    """
    settings = [
        ("safe.directory", "*"),
        ("core.checkStat", "minimal"),
        ("user.name", "agent"),
        ("user.email", "agent@localhost"),
        *extra,
    ]
    found = {"GIT_CONFIG_COUNT": str(len(settings))}
    for index, (name, value) in enumerate(settings):
        found |= {f"GIT_CONFIG_KEY_{index}": name, f"GIT_CONFIG_VALUE_{index}": value}
    return found
