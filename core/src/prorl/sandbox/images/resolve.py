"""What an image reference means, in one place for all runtimes."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from typing import Literal, Self

import msgspec

from prorl.api.errors import ConfigError, SandboxFault
from prorl.host import locks
from prorl.sandbox.images import stamp
from prorl.sandbox.images.builder import DOCKER, OnEvent, SingularityRuntimeBuilder
from prorl.sandbox.images.cache import touch
from prorl.sandbox.images.recipe import SCHEME, Recipe
from prorl.sandbox.images.settings import ImageSettings

ATTEMPTS = 3
FORMS = "an absolute path of a rootfs folder or .sif, docker://NAME, or def:/path/to/x.def.j2?name=value"


class ResolvedImage(msgspec.Struct, frozen=True, kw_only=True):
    """``digest`` tells one content from another (and is cheap: no image is read for it)."""

    kind: Literal["host", "folder", "sif"]
    path: str | None = None
    digest: str | None = None


class Lease:
    """An image in use: it will not be removed from the cache. ``close`` is idempotent."""

    def __init__(self, image: ResolvedImage, lock: int | None) -> None:
        self.image = image
        self._lock = lock

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Images:
    """All images of a server. Raises :class:`SandboxFault` for what cannot be had and ``ConfigError`` never: a wrong
    reference comes with a job, and is that job's fault alone (``code="image_reference"``).
    """

    def __init__(self, settings: ImageSettings | None = None, *, apptainer: str | None = None) -> None:
        self.builder = SingularityRuntimeBuilder(settings, apptainer=apptainer)

    async def resolve(self, reference: str | Recipe | None, *, on_event: OnEvent | None = None) -> ResolvedImage:
        """``reference`` is ``None`` for the host's own /usr, or one of :data:`FORMS`. What has to be built is built."""
        try:
            return await self._resolve(reference, on_event)
        except ConfigError as error:
            raise SandboxFault(str(error), code="image_reference") from error

    async def acquire(self, reference: str | Recipe | None, *, on_event: OnEvent | None = None) -> Lease:
        """Resolve, and keep it from being removed until the lease is closed."""
        for _ in range(ATTEMPTS):
            image = await self.resolve(reference, on_event=on_event)
            if image.kind != "sif" or image.path is None:
                return Lease(image, None)
            path = Path(image.path)
            lock = await locks.shared(path)
            if lock is not None:  # else it was pruned in between
                if path.parent == self.builder.cache.folder:
                    touch(path)
                return Lease(image, lock)
        raise SandboxFault(f"the image {reference} is removed as often as it is built", code="image_missing")

    async def _resolve(self, reference: str | Recipe | None, on_event: OnEvent | None) -> ResolvedImage:
        if reference is None:
            return ResolvedImage(kind="host")
        if isinstance(reference, str) and reference.startswith(SCHEME):
            reference = Recipe.parse(reference)
        if isinstance(reference, Recipe) or reference.startswith(DOCKER):
            built = await self.builder.build(reference, on_event=on_event)
            return await asyncio.to_thread(_sif, built.path)
        if "\0" in reference or not Path(reference).is_absolute():
            raise ConfigError(f"{reference!r} is no image: write {FORMS}")
        return await asyncio.to_thread(_local, Path(reference))


def _local(path: Path) -> ResolvedImage:
    if path.is_dir():
        return _folder(path)
    if not path.exists():
        raise SandboxFault(f"the image {path} is not there", code="image_missing")
    return _sif(path)


def _sif(path: Path) -> ResolvedImage:
    return ResolvedImage(kind="sif", path=str(path), digest=stamp.of_image(path))


def _folder(path: Path) -> ResolvedImage:
    if path.samefile("/"):
        raise ConfigError("the host's own root is not an image: leave image out to have its /usr")
    if not (path / "usr").is_dir() and not (path / "bin").is_dir():
        raise ConfigError(f"{path} is not a root file system: it has neither usr nor bin")
    status = path.stat()
    known = f"{path.resolve()} {status.st_dev} {status.st_ino} {status.st_mtime_ns}"
    return ResolvedImage(kind="folder", path=str(path.resolve()), digest=hashlib.sha256(known.encode()).hexdigest())
