"""SIF images from recipes and registries: built by Apptainer, once at a time, or taken from the cache."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Literal

import msgspec

from prorl.api.errors import ConfigError, SandboxFault
from prorl.host import locks
from prorl.host.remove import remove_tree
from prorl.host.run import run
from prorl.sandbox.images import program, recipe, stamp
from prorl.sandbox.images.cache import Built, ImageCache
from prorl.sandbox.images.program import environment
from prorl.sandbox.images.recipe import CacheMode, Recipe
from prorl.sandbox.images.settings import ImageSettings
from prorl.sandbox.images.sif import find_squashfs

# As measured on a 700 MB image, 5 s instead of 73 s by the default gzip, and a little smaller.
COMPRESSION = "-comp zstd -Xcompression-level 3"
NO_NETWORK = ("dial tcp", "no such host", "network is unreachable", "connection refused", "i/o timeout")
DOCKER = "docker://"


class BuildEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of one image. ``text`` is a line of the build; ``elapsed`` is in seconds since it was asked for."""

    kind: Literal["waiting", "reused", "started", "line", "built", "failed"]
    image: str
    elapsed: float
    text: str = ""


OnEvent = Callable[[BuildEvent], None]


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """A SIF that stands in the cache. ``reused`` says that this call did not build it."""

    path: Path
    entry: str
    built: Built
    reused: bool


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is going to be built, and the name under which an equal one would stand already."""

    entry: str
    source: str
    mode: CacheMode
    digest: str
    base: str | None
    definition: recipe.Definition | None


class SingularityRuntimeBuilder:
    """``build`` may be called from many tasks, processes and nodes at once: an image is built by one of them."""

    def __init__(self, settings: ImageSettings | None = None, *, apptainer: str | None = None) -> None:
        self._settings = settings or ImageSettings()
        self._apptainer = apptainer
        self.cache = ImageCache(self._settings.cache_folder())

    async def build(
        self, source: Recipe | str, *, on_event: OnEvent | None = None, timeout: float | None = None
    ) -> Image:
        """Build a recipe, or convert a ``docker://`` reference, unless the recipe's cache mode lets an earlier build
        stand. ``timeout`` is in seconds for the build itself.

        Raises :class:`ConfigError` for a recipe that cannot be rendered, and :class:`SandboxFault` with the end of the
        build's output (``code``: ``image_build``, ``image_timeout``, ``image_unreachable``, ``missing``).
        """
        asked, asked_at = time.time(), time.monotonic()
        plan = await asyncio.to_thread(self.plan, source)

        def tell(kind: Literal["waiting", "reused", "started", "line", "built", "failed"], text: str = "") -> None:
            if on_event:
                elapsed = time.monotonic() - asked_at
                on_event(BuildEvent(kind=kind, image=plan.entry, elapsed=elapsed, text=text))

        tell("waiting")
        async with self.cache.lock(plan.entry) as lock:
            found = self.cache.find(plan.entry)
            # A build from scratch may stand for those who asked before it began.
            if found and (plan.mode != "scratch" or found.began >= asked):
                tell("reused")
                return Image(path=self.cache.path(plan.entry), entry=plan.entry, built=found, reused=True)
            tell("started")
            try:
                built = await self._build(plan, lock, lambda line: tell("line", line), timeout)
            except Exception as error:
                tell("failed", str(error))
                raise
            tell("built")
            image = Image(path=self.cache.path(plan.entry), entry=plan.entry, built=built, reused=False)
            await self._prune(image.path)
        return image

    async def _prune(self, new: Path) -> None:
        """To the size of the settings, for the sake of what is ``new`` but without it."""
        if self._settings.max_gb is None:
            return
        in_use = await locks.shared(new)
        try:
            await asyncio.to_thread(self.cache.prune, max_bytes=int(self._settings.max_gb * 1e9))
        finally:
            if in_use is not None:
                os.close(in_use)

    def plan(self, source: Recipe | str) -> Plan:
        """The rendered definition and its cache key: a digest of the definition and of what the mode looks at."""
        if isinstance(source, str):
            return self._plan_docker(source)
        definition = recipe.render(source)
        parts = [source.cache, definition.text, str(definition.folder)]
        if source.cache == "versioned":
            parts += ["framework", framework_version(), "base", self._base_stamp(definition)]
        elif source.cache == "lock":
            if not source.lock:
                raise ConfigError(f"{source.template}: the cache mode lock needs the path of a lock file")
            parts += [part for path in source.lock for part in (path, stamp.of_file_content(Path(path)))]
        return Plan(
            entry=f"{source.name}-{_key(parts)}",
            source=source.reference,
            mode=source.cache,
            digest=definition.digest,
            base=definition.base,
            definition=definition,
        )

    def _plan_docker(self, reference: str) -> Plan:
        name = reference.removeprefix(DOCKER)
        if not name or not name.isprintable() or any(letter in " \"'\\" for letter in name):
            raise ConfigError(f"{reference!r} is not a docker reference: write docker://debian:12")
        key = _key(["docker", reference])
        return Plan(
            entry=f"{recipe.readable_name(name)}-{key}",
            source=reference,
            mode="versioned",
            digest=key,
            base=name,
            definition=None,
        )

    @staticmethod
    def _base_stamp(definition: recipe.Definition) -> str:
        """Of a local base its stamp; of any other its name, in which a digest can be written (debian@sha256:...)."""
        if definition.bootstrap != "localimage" or definition.base is None:
            return f"{definition.bootstrap}:{definition.base}"
        path = definition.folder / definition.base
        if not path.exists():
            raise ConfigError(f"the base image {path} is not there")
        return stamp.of_image(path)

    async def _build(self, plan: Plan, lock: int, on_line: Callable[[str], None], timeout: float | None) -> Built:
        apptainer = program.require_apptainer(self._apptainer)
        timeout = self._settings.build_timeout if timeout is None else timeout
        part = self.cache.part(plan.entry)
        unpacked = await asyncio.to_thread(self._make_tmp, plan.entry)
        wanted = plan.source
        if plan.definition:
            file = unpacked / "image.def"
            file.write_text(plan.definition.text)
            wanted = str(file)
        argv = [*program.build_prefix(), apptainer, "build", "--mksquashfs-args", COMPRESSION, str(part), wanted]
        began, started = time.time(), time.monotonic()
        finished = None
        try:
            finished = await run(
                argv,
                env=environment({"APPTAINER_TMPDIR": str(unpacked), "SINGULARITY_TMPDIR": str(unpacked)}),
                cwd=plan.definition.folder if plan.definition else None,
                timeout=timeout,
                on_line=on_line,
                log=self.cache.log(plan.entry),
                locks=[lock],
                remove=[unpacked],
            )
            if finished.code != 0:
                raise self._failed(plan, f"ended with exit code {finished.code}", finished.tail)
            await asyncio.to_thread(find_squashfs, part)
            built = Built(
                source=plan.source,
                mode=plan.mode,
                digest=plan.digest,
                began=began,
                seconds=time.monotonic() - started,
                framework=framework_version(),
                base=plan.base,
            )
            await asyncio.to_thread(self.cache.commit, plan.entry, part, built)
        except TimeoutError as error:
            log = self.cache.log(plan.entry)
            message = f"the build of {plan.entry} took more than {timeout:g} s and was ended; its output: {log}"
            raise SandboxFault(message, code="image_timeout") from error
        finally:
            await asyncio.to_thread(remove_tree, part)
            await asyncio.to_thread(remove_tree, unpacked)
        return built

    def _make_tmp(self, entry: str) -> Path:
        """Room for the unpacked image. We hold the lock: what others left there under this name is dead."""
        folder = self._settings.tmp_folder()
        for left in folder.glob(f"prorl-build-{entry}-*"):
            remove_tree(left)
        made = folder / f"prorl-build-{entry}-{time.monotonic_ns():x}"
        made.mkdir(mode=0o700)
        return made

    def _failed(self, plan: Plan, how: str, tail: str) -> SandboxFault:
        if any(sign in tail for sign in NO_NETWORK):
            advice = (
                "the registry cannot be reached from here: build where it can be (apptainer build image.sif "
                f"{plan.source if plan.definition is None else 'FILE'}), and name the .sif as the image"
            )
            return SandboxFault(f"{plan.entry}: {advice}\n{tail}", code="image_unreachable")
        log = self.cache.log(plan.entry)
        return SandboxFault(f"the build of {plan.entry} {how}; all of its output: {log}\n{tail}", code="image_build")


def framework_version() -> str:
    return metadata.version("prorl")


def _key(parts: list[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part.encode())}:".encode() + part.encode())
    return digest.hexdigest()[:16]
