"""What a spec's binds must be, for every runtime; and copying a folder, where there is no other way to one's own."""

from __future__ import annotations

import subprocess
from pathlib import Path, PurePosixPath

from prorl.api.errors import SandboxFault
from prorl.api.sandbox import Bind, SandboxSpec


def check_binds(spec: SandboxSpec) -> None:
    """Raises :class:`SandboxFault` for what is not there or cannot be: a runtime would say so only amidst a start."""
    for bind in spec.binds:
        if not Path(bind.source).exists():
            raise SandboxFault(f"there is no {bind.source} to bind to {bind.target}", code="bind_missing")
        target = PurePosixPath(bind.target)
        if not target.is_absolute() or ".." in target.parts:
            raise SandboxFault(f"bind to an absolute path without '..', not to {bind.target!r}", code="bad_spec")
        if bind.own and bind.writable:
            raise SandboxFault(f"the bind to {bind.target} is either writable or the sandbox's own", code="bad_spec")
        if bind.own and not Path(bind.source).is_dir():
            raise SandboxFault(f"{bind.source} is a file: only a folder can be a sandbox's own", code="bad_spec")


def copy_folder(source: str, target: Path) -> None:
    """The content of ``source`` in the folder ``target``, which is made; its files are ours. Shares blocks where the
    file system can. Blocks. Raises :class:`SandboxFault`.
    """
    target.mkdir(parents=True, exist_ok=True)
    how = ["--reflink=auto", "--preserve=mode,timestamps,links"]
    done = subprocess.run(
        ["cp", "-dR", *how, "--", f"{source}/.", str(target)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SandboxFault(f"{source} cannot be copied: {done.stderr.strip()[-500:]}", code="bind_copy")


def own_folders(spec: SandboxSpec) -> list[Bind]:
    """The folders that are to be the sandbox's own, by index."""
    return [bind for bind in spec.binds if bind.own]
