"""Scripts of ours in a sandbox, by a shell that inherits nothing of anybody's but its folder.

They leave their answers in files of a folder that they are given, and what they print is for people.
"""

from __future__ import annotations

import importlib.resources
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path

from prorl.api import Sandbox, SandboxFault
from prorl_swe.repository.prepared import PRISTINE_GIT, Prepared

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CLEAN = ("/usr/bin/env", "-i", f"PATH={PATH}")


class ScriptError(Exception):
    """A script of ours did not get to its end; the message is the last that it said."""


def script(*names: str) -> str:
    """The text of scripts of this package, one after the other."""
    folder = importlib.resources.files("prorl_swe")
    return "\n".join(folder.joinpath(name).read_text("utf-8") for name in names)


async def run_script(
    sandbox: Sandbox, prepared: Prepared, folder: str, text: str, variables: Mapping[str, str], *, timeout: float
) -> None:
    """Run it with ``OURS``, the ``folder``, made if need be. Raises :class:`ScriptError`, ``TimeoutError``, and
    ``SandboxFault`` when the sandbox is lost.
    """
    given = {"OURS": folder, "BASE": prepared.base, "WORKTREE": prepared.worktree, "PRISTINE": PRISTINE_GIT}
    words = [*CLEAN, *(f"{name}={value}" for name, value in {**given, **variables}.items())]
    words += ["/bin/bash", "--noprofile", "--norc", "-c", f'umask 077; mkdir -p "$OURS" || exit 40\n{text}']
    ended = await sandbox.act("bash", {"command": shlex.join(words)}, timeout=timeout)
    if ended.outcome == "timeout":
        raise TimeoutError(f"not done after {timeout:g} s")
    if ended.outcome != "ok" or ended.data.get("exit_code") != 0:
        said = (ended.output.strip() or ended.error or "").splitlines()
        raise ScriptError(f"exit code {ended.data.get('exit_code')}: {' / '.join(said[-3:])[-1000:]}")


async def fetch(sandbox: Sandbox, path: str, *, max_bytes: int, timeout: float) -> bytes | None:
    """The content of a file; ``None`` when there is none."""
    with tempfile.TemporaryDirectory(prefix="prorl-swe-") as folder:
        local = Path(folder) / "file"
        try:
            await sandbox.download(path, local, timeout=timeout, max_bytes=max_bytes)
        except SandboxFault as fault:
            if fault.code in ("transfer_failed", "transfer_refused"):
                return None
            raise
        return local.read_bytes() if local.is_file() else None
