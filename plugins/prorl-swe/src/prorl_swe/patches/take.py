"""The agent's patch, out of its own sandbox: what its working tree is at the end against the base.

git does it, with a git directory of our own over the pristine objects: what the agent did to ``.git`` (commits,
settings, hooks, filters, none at all any more) does not matter, nor does ``.gitattributes``. New files come along
unless the repository's own ``.gitignore`` names them or they are droppings of tests (``git.sh``); those of a repository
within the repository do too.

The sandbox is the agent's, so all of it could lie; but only about the patch, which is the agent's to choose anyway.
"""

from __future__ import annotations

import secrets

from prorl.api import Sandbox
from prorl_swe.patches.patch import Patch
from prorl_swe.patches.shell import ScriptError, fetch, run_script, script
from prorl_swe.repository.prepared import Prepared

MAX_BYTES = 2 << 20
MAX_PATHS = 4 << 20
READ_S = 60.0
# What take.sh calls, beside bash: a sandbox must have them before the agent is let in.
PROGRAMS = ("awk", "find", "git", "grep", "head", "sed", "stat", "tail", "tr", "xargs")


async def take_patch(
    sandbox: Sandbox, prepared: Prepared, max_bytes: int = MAX_BYTES, *, timeout: float = 180.0
) -> Patch:
    """``timeout`` in seconds. Where there is none to be had, ``problem`` says why. Raises ``SandboxFault`` when the
    sandbox is lost.
    """
    folder = f"/tmp/.prorl-swe-{secrets.token_hex(8)}"  # noqa: S108 - the sandbox's own, and nobody can guess it
    text = script("patches/git.sh", "patches/take.sh")
    try:
        await run_script(sandbox, prepared, folder, text, {"MAX": str(max_bytes)}, timeout=timeout)
        problem = await fetch(sandbox, f"{folder}/problem", max_bytes=MAX_PATHS, timeout=READ_S)
        if problem is not None:
            return Patch(problem=problem.decode("utf-8", "replace"))
        data = await fetch(sandbox, f"{folder}/patch", max_bytes=max_bytes, timeout=READ_S)
        paths = await fetch(sandbox, f"{folder}/paths", max_bytes=MAX_PATHS, timeout=READ_S)
    except (ScriptError, TimeoutError) as error:
        return Patch(problem=f"the patch could not be taken: {error}")
    if data is None or paths is None:
        return Patch(problem="the patch could not be taken: it was gone before it could be read")
    files = tuple(path.decode("utf-8", "backslashreplace") for path in paths.split(b"\0") if path)
    return Patch(data=data, files=files)
