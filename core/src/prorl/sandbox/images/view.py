"""What a bubblewrap sandbox sees of an image: bwrap's options for it, and what must run before bwrap.

The image is the lower layer of an overlay whose upper layer is a tmpfs of the sandbox's own, as large as the limits
allow. bwrap cannot size that tmpfs, so it is mounted in a mount namespace around bwrap. Where the kernel refuses
overlays (in user namespaces before 5.11) the image is read-only.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from prorl.api.errors import SandboxFault
from prorl.sandbox.images.inroot import InRoot
from prorl.sandbox.images.roots import Root

# Covered, so that the tmpfs needs no name that could be left behind; nothing of it is looked at by bwrap or by us.
TOP = "/sys"
MAKE_TOP = 'mount -t tmpfs -o "$1" prorl "$2" && mkdir "$2/upper" "$2/work" && shift 2 && exec "$@"'
NOT_SHOWN = ("proc", "sys", "dev", "tmp", "run")
CHECK_WITHIN = 20.0


def before_bwrap(enter: Sequence[str], *, tmp_mb: int | None, is_root: bool) -> list[str]:
    """What to put before ``bwrap``: into the namespace of the image's mount, and a fresh upper layer at ``TOP``."""
    namespaces = ["unshare", "--mount", "--propagation", "slave"]
    if not is_root and not enter:
        namespaces += ["--user", "--map-root-user"]
    size = f"size={tmp_mb}m,mode=0755" if tmp_mb else "mode=0755"
    return [*enter, *namespaces, "sh", "-c", MAKE_TOP, "sh", size, TOP]


def overlay(root: Root) -> Iterator[str]:
    yield from ("--overlay-src", root.path, "--overlay", f"{TOP}/upper", f"{TOP}/work", "/")


def read_only(root: Root) -> Iterator[str]:
    """Its top level piece by piece, on the tmpfs that bwrap makes: there directories can be added at the top."""
    for path in sorted(Path(root.seen).iterdir()):
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), f"/{path.name}")
        elif path.name not in NOT_SHOWN:
            yield from ("--ro-bind", f"{root.path}/{path.name}", f"/{path.name}")


def why_no_overlay(bwrap: str, is_root: bool) -> str | None:
    """Really mounts one."""
    wrapped = before_bwrap((), tmp_mb=1, is_root=is_root)
    user = [] if is_root else ["--unshare-user"]
    options = ["--ro-bind", "/", "/", "--overlay-src", "/usr", "--overlay", f"{TOP}/upper", f"{TOP}/work", "/usr"]
    argv = [*wrapped, bwrap, *user, *options, "--", "/bin/sh", "-c", "mkdir /usr/prorl-check"]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=CHECK_WITHIN
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"


def users(inside: InRoot, line: str, path: str) -> str:
    """The image's own passwd or group with one more line, which comes first."""
    return line + (inside.read(path) or "")


def check(inside: InRoot, paths: Sequence[str]) -> None:
    """bwrap makes directories and files for what it mounts, and would follow a link of the image onto the host."""
    for path in paths:
        link = inside.link_on_the_way(path)
        if link is not None:
            raise SandboxFault(
                f"this image cannot be used: its {link} is a link, and {path} is needed", code="bad_image"
            )


def is_empty(inside: InRoot, root: Root, path: str) -> bool:
    """Nothing of the image is at ``path``, or an empty directory."""
    found = inside.resolve(path)
    if found is None:
        return True
    at = Path(root.seen, *PurePosixPath(found).parts[1:])
    return at.is_dir() and next(at.iterdir(), None) is None
