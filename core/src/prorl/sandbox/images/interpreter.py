"""The python3 of an image, and the environment its maker gave it, found without running anything of it."""

from __future__ import annotations

import re
import shlex

from prorl.sandbox.images.inroot import InRoot

OLDEST = (3, 8)
NEWEST_TRIED = 30
DIRECTORIES = ("/usr/local/bin", "/usr/bin", "/bin", "/opt/conda/bin", "/opt/venv/bin")
DOCKER_ENV = "/.singularity.d/env/10-docker2singularity.sh"
ASSIGNMENT = re.compile(r'^export ([A-Za-z_][A-Za-z0-9_]*)=("?)(?:\$\{\1:-)?(.*?)(?:\})?\2$')
VERSION = re.compile(r"python(\d+)\.(\d+)$")


def find_python(inside: InRoot, path: str | None = None) -> str | None:
    """The first python3 on ``path`` that is new enough, as far as its file's name tells; ``None`` without one."""
    directories = [part for part in (path or "").split(":") if part.startswith("/")]
    for directory in [*directories, *DIRECTORIES]:
        for name in ("python3", *(f"python3.{minor}" for minor in range(NEWEST_TRIED, OLDEST[1] - 1, -1))):
            found = inside.resolve(f"{directory}/{name}")
            if found is None or not inside.is_program(found):
                continue
            version = VERSION.search(found)
            if version is None or (int(version[1]), int(version[2])) >= OLDEST:
                return f"{directory}/{name}"
    return None


def image_environment(inside: InRoot) -> dict[str, str]:
    """The ENV of the docker image that a SIF was made from. Taken literally: no shell reads it here."""
    found = {}
    for line in (inside.read(DOCKER_ENV) or "").splitlines():
        match = ASSIGNMENT.match(line.strip())
        if match:
            found[match[1]] = _unquote(match[3])
    return found


def _unquote(value: str) -> str:
    try:
        parts = shlex.split(value)
    except ValueError:
        return value
    return parts[0] if len(parts) == 1 else value
