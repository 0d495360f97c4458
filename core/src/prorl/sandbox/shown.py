"""What a bubblewrap sandbox is shown, by kind of image: whose files, whose python, whose environment."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from prorl.api.errors import SandboxFault
from prorl.api.sandbox import SandboxSpec
from prorl.sandbox import host
from prorl.sandbox.binds import own_folders
from prorl.sandbox.images import interpreter, view
from prorl.sandbox.images.inroot import InRoot
from prorl.sandbox.images.roots import Root

MOUNT_POINTS = ("/proc", "/dev", "/dev/shm", "/tmp", "/etc")  # noqa: S108
USERS = ("/etc/passwd", "/etc/group")
RESOLV_CONF = "/etc/resolv.conf"
BASH = "/bin/bash"


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """``options`` are bwrap's for the root, ``files`` small files by path, ``before`` what starts bwrap. ``workdir``
    says that the working directory is to be made, ``read_only`` that nothing else may be written to. ``python=None``:
    there is none, and the action server is the one of bash alone.
    """

    python: str | None
    options: list[str]
    files: dict[str, str]
    binds: list[str] = []
    before: list[str] = []
    env: dict[str, str] = {}
    launch_env: dict[str, str] = {}
    workdir: bool = True
    read_only: bool = True


def show_host(spec: SandboxSpec, python: str | None, files: dict[str, str], *, copied: bool, uid: int | None) -> Shown:
    """The host's /usr, read-only, and the server's own interpreter with its packages. ``copied``: folders that are the
    sandbox's own are to be copied, for there are no overlays here.
    """
    options = ["--ro-bind", "/usr", "/usr"]
    for path, target in host.root_binds():
        options += ["--symlink", target, path] if target else ["--ro-bind", path, path]
    options += ["--perms", "0755", "--dir", "/etc"]
    for path in host.etc_binds(spec.network):
        options += ["--ro-bind", path, path]
    executable, binds = host.interpreter(python)
    own = [bind.source for bind in own_folders(spec)]
    before = view.before_bwrap([], None, own, tmp_mb=spec.limits.tmp_mb, uid=uid, copied=copied) if own else []
    launch_env = _path() if before else {}
    return Shown(python=executable, options=options, files=files, binds=binds, before=before, launch_env=launch_env)


def show_image(
    spec: SandboxSpec,
    root: Root,
    files: dict[str, str],
    needed: list[str],
    *,
    writable: bool,
    copied: bool,
    uid: int | None,
) -> Shown:
    """An image's files and its own python3. ``needed`` are the paths at which something will be mounted, ``uid`` is
    the sandbox's when the server is root, ``copied`` as for :func:`show_host`.

    Raises :class:`SandboxFault` (``no_python``, ``bad_image``) for one that cannot be a sandbox.
    """
    image = InRoot(root.seen)
    env = interpreter.image_environment(image)
    python = interpreter.find_python(image, env.get("PATH"))
    if python is None and uid is not None:
        raise SandboxFault(
            f"{spec.image} has no python3 (3.8 or newer), which a server that is root needs to give up its rights: "
            "run the server as an ordinary user, or add python3 to the image",
            code="no_python",
        )
    if python is None and not image.is_program(image.resolve(BASH) or ""):
        raise SandboxFault(f"{spec.image} has neither python3 (3.8 or newer) nor {BASH}", code="no_python")
    view.check(image, [*MOUNT_POINTS, *needed])
    files = {path: view.users(image, text, path) if path in USERS else text for path, text in files.items()}
    if spec.network:
        files[RESOLV_CONF] = Path(RESOLV_CONF).read_text()
    own = [bind.source for bind in own_folders(spec)]
    before = [*root.enter]
    if writable or own:
        image_layer = root.path if writable else None
        before = view.before_bwrap(root.enter, image_layer, own, tmp_mb=spec.limits.tmp_mb, uid=uid, copied=copied)
    return Shown(
        python=python,
        options=view.overlay(root.path, is_root=uid is not None) if writable else list(view.read_only(root)),
        # A file can be mounted only where there is one, or where one can be made; and never over a link.
        files={
            path: text
            for path, text in files.items()
            if image.link_on_the_way(path) is None and (writable or image.resolve(path))
        },
        before=before,
        env=env,
        launch_env=_path(),
        workdir=view.is_empty(image, root, spec.workdir),
        read_only=not writable,
    )


def _path() -> dict[str, str]:
    """For the programs that run before bwrap."""
    return {"PATH": os.environ.get("PATH", os.defpath)}
