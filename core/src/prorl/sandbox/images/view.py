"""What a bubblewrap sandbox can write to of an image and of folders of the host: bwrap's options, what runs before it.

The image is the lower layer of an overlay whose upper layer is a tmpfs of the sandbox's own, as large as the limits
allow. bwrap cannot size that tmpfs, so it is mounted in a mount namespace around bwrap; so is the overlay where the
server is root (layers.py). Where the kernel refuses overlays (in user namespaces before 5.11), or where a folder is
somebody else's, the image is read-only. Folders that are to be the sandbox's own (``Bind.own``) are laid out in the
same tmpfs; where the kernel refuses, they are copied into it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from prorl.api.errors import SandboxFault
from prorl.sandbox.images import layers
from prorl.sandbox.images.inroot import InRoot
from prorl.sandbox.images.roots import Root

# Covered, so that the tmpfs needs no name that could be left behind; nothing of it is looked at by bwrap or by us.
TOP = "/sys"
# $1 options of the tmpfs, $2 where it is, then pairs up to "--": "layer NAME", or "copy SOURCE" followed by "to NAME".
MAKE_TOP = """set -e; mount -t tmpfs -o "$1" prorl "$2"; cd "$2"; shift 2
while [ "$1" != -- ]; do case $1 in
layer) mkdir "$2" "$2/upper" "$2/work";;
copy) from=$2;;
to) mkdir "$2" "$2/merged"; cp -dR --preserve=mode,timestamps,links -- "$from/." "$2/merged";;
esac; shift 2; done; shift; cd /; exec "$@\""""
NOT_SHOWN = ("proc", "sys", "dev", "tmp", "run")
CHECK_WITHIN = 20.0
SOME_UID = 0x70000000


def before_bwrap(
    enter: Sequence[str], image: str | None, own: Sequence[str], *, tmp_mb: int | None, uid: int | None, copied: bool
) -> list[str]:
    """What to put before ``bwrap``: into the namespace of the image's mount, and fresh layers at ``TOP``, over the
    image (``None``: it is not to be written to) and the folders ``own``, if those are not to be ``copied``. ``uid`` is
    the sandbox's when the server is root, which finds out itself whether to copy.
    """
    namespaces = [*enter, "unshare", "--mount", "--propagation", "slave"]
    if uid is not None:
        return [*namespaces, *layers.command([], top=TOP, tmp_mb=tmp_mb, image=image, own=own, uid=uid)]
    if not enter:
        namespaces += ["--user", "--map-root-user"]
    pairs = ["layer", layers.IMAGE] if image else []
    for index, source in enumerate(own):
        pairs += ["copy", source, "to", str(index)] if copied else ["layer", str(index)]
    size = ""
    if tmp_mb:
        size = f"size={tmp_mb + (sum(map(layers.megabytes, own)) if copied else 0)}m,"
    return [*namespaces, "sh", "-c", MAKE_TOP, "sh", f"{size}mode=0755", TOP, *pairs, "--"]


def overlay(image: str, *, is_root: bool) -> list[str]:
    """bwrap's options for what :func:`before_bwrap` has prepared of the image."""
    return _layer(layers.IMAGE, image, "/", merged=is_root)


def own_folder(index: int, source: str, target: str, *, is_root: bool, copied: bool) -> list[str]:
    """bwrap's options for what :func:`before_bwrap` has prepared of the ``own`` folder of that index."""
    return _layer(str(index), source, target, merged=is_root or copied)


def _layer(name: str, source: str, target: str, *, merged: bool) -> list[str]:
    if merged:
        return ["--bind", layers.merged(TOP, name), target]
    return ["--overlay-src", source, "--overlay", f"{TOP}/{name}/upper", f"{TOP}/{name}/work", target]


def read_only(root: Root) -> Iterator[str]:
    """Its top level piece by piece, on the tmpfs that bwrap makes: there directories can be added at the top."""
    for path in sorted(Path(root.seen).iterdir()):
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), f"/{path.name}")
        elif path.name not in NOT_SHOWN:
            yield from ("--ro-bind", f"{root.path}/{path.name}", f"/{path.name}")


class Layers(msgspec.Struct, frozen=True, kw_only=True):
    """Why images cannot be written to here: not at all, or not by the users that a server that is root gives them."""

    no_overlay: str | None = None
    no_shift: str | None = None


def probe_layers(bwrap: str, *, is_root: bool) -> Layers:
    """Really mounts them, over the host's /usr."""
    if is_root:
        check = ["mkdir", f"{layers.merged(TOP, layers.IMAGE)}/prorl-check"]
        named = {"top": TOP, "tmp_mb": 1, "image": "/usr", "uid": SOME_UID}
        private = ["unshare", "--mount", "--propagation", "slave"]
        return Layers(
            no_overlay=_failure([*private, *layers.command(check, **named)]),  # type: ignore[arg-type]
            no_shift=_failure([*private, *layers.command(check, **named, must_shift=True)]),  # type: ignore[arg-type]
        )
    before = before_bwrap([], "/usr", [], tmp_mb=1, uid=None, copied=False)
    options = ["--unshare-user", "--ro-bind", "/", "/", *overlay("/usr", is_root=False)[:-1], "/usr"]
    return Layers(no_overlay=_failure([*before, bwrap, *options, "--", "/bin/sh", "-c", "mkdir /usr/prorl-check"]))


def _failure(argv: Sequence[str]) -> str | None:
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


def is_ours(folder: str) -> bool:
    """An ordinary user can write to no overlay of somebody else's files, nor have anything mounted there."""
    return os.geteuid() in (0, os.stat(folder).st_uid)  # noqa: PTH116


def is_empty(inside: InRoot, root: Root, path: str) -> bool:
    """Nothing of the image is at ``path``, or an empty directory."""
    found = inside.resolve(path)
    if found is None:
        return True
    at = Path(root.seen, *PurePosixPath(found).parts[1:])
    return at.is_dir() and next(at.iterdir(), None) is None
