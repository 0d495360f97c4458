"""The cache of prepared repositories: bases and environments of tests, each made once, shared by all rollouts.

::

    Instance ──┬─ base ── tree, .git, metadata ──────┐
               │                                     ├── Prepared: a sandbox's spec in which both are shown
               └─ what its tests need ── environment ┘   (the working tree is each sandbox's own, Bind.own)
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from prorl.api.errors import SandboxFault
from prorl.api.sandbox import Bind, SandboxSpec
from prorl_swe.repository import base, clone, environment, image, sdist
from prorl_swe.repository.git import find_git, inside_environment
from prorl_swe.repository.prepared import PRISTINE_GIT, WORKTREE, Prepared
from prorl_swe.repository.store import Held, Make, Store
from prorl_swe.rows.instance import ImageSource, Instance, SdistSource

FORMAT = 1  # of what is kept: another one makes everything anew
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


def default_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "prorl" / "swe"


class CacheLease:
    """Implements :class:`prorl_swe.repository.prepared.Lease`."""

    def __init__(self, prepared: Prepared, held: list[Held]) -> None:
        self.prepared = prepared
        self._held = held

    def close(self) -> None:
        for held in self._held:
            held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class RepositoryCache:
    """Implements :class:`prorl_swe.repository.prepared.Repositories`. Making one touches nothing.

    ``max_gb``: what was used longest ago and is not in use goes when the cache grows beyond it; ``None``: never.
    """

    def __init__(self, folder: str | Path | None = None, *, max_gb: float | None = 20.0) -> None:
        self.store = Store(
            Path(folder or default_folder()).resolve(), max_bytes=None if max_gb is None else int(max_gb * 1e9)
        )

    async def prepare(
        self, instance: Instance, sandbox: SandboxSpec, *, start: image.Start = image.nothing_starts
    ) -> CacheLease:
        """See :class:`Repositories`. Whoever asks for the same meanwhile waits for it. ``start`` starts a sandbox, to
        copy the repository out of an image.
        """
        find_git()
        source = instance.source
        if isinstance(source, ImageSource):
            return await self._prepare_image(instance, source, sandbox, start)
        if sandbox.image is not None:
            what = "repositories that are not in an image are tested by this machine's Python: leave sandbox.image out"
            raise SandboxFault(what, code="image_unsupported")
        make: Make
        if isinstance(source, SdistSource):
            key = _key("sdist", source.sha256, instance.base_patch)
            make = partial(sdist.make, source, instance.base_patch)
        else:
            key = _key("clone", source.commit.lower(), instance.base_patch, instance.repo, instance.version)
            make = partial(clone.make, source, instance)
        held = [await self.store.take("base", key, make)]
        try:
            found = base.read(held[0].path)
            wanted = environment.wanted(found.requirements, found.optional, source.requirements)
            held.append(await self.store.take("env", wanted.key(), partial(environment.make, wanted)))
        except BaseException:
            held[0].close()
            raise
        return CacheLease(_on_the_hosts_python(sandbox, found, held[0].path, held[1].path), held)

    async def _prepare_image(
        self, instance: Instance, source: ImageSource, sandbox: SandboxSpec, start: image.Start
    ) -> CacheLease:
        stamp = await asyncio.to_thread(_stamp, source.reference)
        key = _key("image", source, stamp, instance.base_commit, instance.base_patch, instance.hidden)
        held = await self.store.take("base", key, partial(image.make, source, instance, start))
        return CacheLease(_in_its_image(sandbox, source, held.path), [held])

    async def close(self) -> None:
        await self.store.close()


def _on_the_hosts_python(sandbox: SandboxSpec, found: base.Base, base_folder: Path, env_folder: Path) -> Prepared:
    # Shown already, unless [sandbox] python names another interpreter than the server's.
    python = sys.base_prefix
    binds = (
        *([] if Path(python).is_relative_to("/usr") else [Bind(source=python, target=python)]),
        *_shown(base_folder, WORKTREE),
        Bind(source=str(env_folder / environment.VENV), target=environment.AT),
        Bind(source=str(base_folder / base.PROJECT), target=environment.PROJECT_AT),
    )
    env = inside_environment() | {"PATH": f"{environment.AT}/bin:{SYSTEM_PATH}", "VIRTUAL_ENV": environment.AT}
    spec = msgspec.structs.replace(
        sandbox, workdir=WORKTREE, network=False, env=env | sandbox.env, binds=(*sandbox.binds, *binds)
    )
    return Prepared(base=found.commit, worktree=WORKTREE, python=environment.PYTHON_AT, spec=spec)


def _in_its_image(sandbox: SandboxSpec, source: ImageSource, base_folder: Path) -> Prepared:
    found = base.read(base_folder)
    spec = msgspec.structs.replace(
        sandbox,
        image=source.reference,
        workdir=source.path,
        network=False,
        env=inside_environment() | sandbox.env,
        binds=(*sandbox.binds, *_shown(base_folder, source.path)),
    )
    return Prepared(base=found.commit, worktree=source.path, python=found.python, spec=spec, activate=source.activate)


def _shown(base_folder: Path, worktree: str) -> tuple[Bind, Bind]:
    tree = base_folder / base.TREE
    return Bind(source=str(tree), target=worktree, own=True), Bind(source=str(tree / ".git"), target=PRISTINE_GIT)


def _stamp(reference: str) -> str:
    """Tells one content of a local image from another."""
    try:
        status = Path(reference).stat()
    except OSError:
        return ""
    return f"{status.st_mtime_ns} {status.st_size}"


def _key(*parts: object) -> str:
    return hashlib.sha256(msgspec.json.encode((FORMAT, *parts))).hexdigest()[:32]
