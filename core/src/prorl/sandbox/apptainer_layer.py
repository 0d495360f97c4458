"""What a container writes, and what it sees as its root when there is no image: a private folder on the host.

::

    folder/root    image=None: a bare root; the host's /usr is bound into it read-only
    folder/layer   the writable layer: upper and work (overlay), tmp and var_tmp (its /tmp and /var/tmp)
    folder/own     folders of the host that are the container's own (Bind.own), by index

As root the layer is a tmpfs of the size that the limits say, in a mount namespace of the container's own: it is gone
with the last process, and no mount is ever seen on the host; own folders are overlays there (images/layers.py). An
ordinary user has it on the disk of ``scratch``, with copies for own folders: Apptainer lays nothing over a bind.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path, PurePosixPath

import msgspec

from prorl.api.errors import SandboxFault
from prorl.api.sandbox import Bind, SandboxSpec
from prorl.sandbox import host
from prorl.sandbox.binds import copy_folder, own_folders
from prorl.sandbox.images import layers

PREFIX = "prorl-apptainer-"
PRIVATE = ("/tmp", "/var/tmp", "/dev", "/proc")  # noqa: S108 - not on the overlay
BARE = ("usr", "etc", "proc", "dev", "tmp", "run", "root", "home", "sys", "var/tmp")
# $1 layer, $2 options of the tmpfs, $3 working directory (relative, may be empty), then the command line.
IN_MEMORY = """set -e; umask 022; layer=$1; mount -t tmpfs -o "$2" prorl "$layer"
mkdir -p "$layer/work" "$layer/tmp" "$layer/var_tmp" "$layer/upper/$3"
chmod 1777 "$layer/tmp" "$layer/var_tmp"; [ -z "$3" ] || chmod 0777 "$layer/upper/$3"
shift 3; exec "$@\""""


class Layer:
    """One container's folder."""

    def __init__(self, scratch: str | None, *, in_memory: bool) -> None:
        try:
            self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=scratch))
        except OSError as error:
            raise SandboxFault(f"no folder for a sandbox: {error}", code="no_scratch") from error
        self.path = self.folder / "layer"
        self._own = self.folder / "own"
        self._in_memory = in_memory

    def make(self, spec: SandboxSpec) -> None:
        self.path.mkdir()
        self._own.mkdir()
        if self._in_memory and spec.limits.tmp_mb:
            return
        workdir = self.path / "upper" / _below_root(spec.workdir)
        for directory in (self.path / "work", self.path / "tmp", self.path / "var_tmp", workdir):
            directory.mkdir(parents=True, exist_ok=True)
        for name in ("tmp", "var_tmp"):
            (self.path / name).chmod(0o1777)
        if _below_root(spec.workdir):
            workdir.chmod(0o777)  # whatever the image says of that directory, the agent works in it

    def copy_own(self, spec: SandboxSpec) -> None:
        """Blocks. As root there is nothing to copy. Raises :class:`SandboxFault`."""
        if not self._in_memory:
            for index, bind in enumerate(own_folders(spec)):
                copy_folder(bind.source, self._own / str(index))

    def shown(self, spec: SandboxSpec) -> SandboxSpec:
        """With writable binds of what lies here in place of own ones."""
        binds, index = [], 0
        for bind in spec.binds:
            if bind.own:
                at = layers.merged(str(self._own), str(index)) if self._in_memory else str(self._own / str(index))
                bind = Bind(source=at, target=bind.target, writable=True)  # noqa: PLW2901
                index += 1
            binds.append(bind)
        return msgspec.structs.replace(spec, binds=tuple(binds))

    def wrap(self, command: list[str], spec: SandboxSpec, uid: int) -> list[str]:
        """The command line that has the layer in place when ``command`` runs. ``uid`` is the agent's."""
        tmp_mb, own = spec.limits.tmp_mb, [bind.source for bind in own_folders(spec)]
        if not self._in_memory or not (tmp_mb or own):
            return command
        if tmp_mb:
            options = f"size={tmp_mb}m,mode=0755,nodev"
            command = ["sh", "-c", IN_MEMORY, "sh", str(self.path), options, _below_root(spec.workdir), *command]
        if own:
            command = layers.command(command, top=str(self._own), tmp_mb=tmp_mb, own=own, uid=uid)
        return ["unshare", "--mount", "--propagation", "private", *command]

    def bare_root(self, uid: int, home: str) -> Path:
        """A root with nothing in it but mount points and a minimal /etc."""
        root = self.folder / "root"
        for name in BARE:
            (root / name).mkdir(parents=True, exist_ok=True)
        for path, target in host.root_binds():
            if target:
                (root / path[1:]).symlink_to(target)
            else:
                (root / path[1:]).mkdir()
        for path, content in host.etc_files(uid, uid, home).items():
            (root / path[1:]).write_text(content)
        for directory, names, files in os.walk(root):  # whatever our umask is, the agent is somebody else
            for name in (*names, *files):
                inner = Path(directory, name)
                if not inner.is_symlink():
                    inner.chmod(0o755 if inner.is_dir() else 0o644)
        root.chmod(0o755)
        return root


def _below_root(workdir: str) -> str:
    """The working directory as a path in the overlay; empty when it does not lie there."""
    path = PurePosixPath(workdir)
    if ".." in path.parts or not path.is_absolute():
        raise SandboxFault(f"workdir must be an absolute path without '..', not {workdir!r}", code="bad_spec")
    if any(path.is_relative_to(private) for private in PRIVATE):
        return ""
    return str(path.relative_to("/")).removeprefix(".")
