"""Directories that hold the files of an image, for a runtime that starts from directories.

A SIF is mounted by squashfuse in a mount namespace that belongs to the squashfuse process alone (in a user namespace
too, unless we are root), and sandboxes are started inside that namespace. So the mount is no name on the host that
could be left behind: with the process everything is gone. One mount serves all sandboxes of an image in this server,
and ends with the last of them. Where FUSE cannot be used, the SIF is unpacked once into the cache.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from pathlib import Path

import msgspec

from prorl.api.errors import SandboxFault
from prorl.host import locks
from prorl.host.remove import remove_tree
from prorl.host.run import Guarded, run, to_its_end
from prorl.sandbox.images.cache import ImageCache, touch
from prorl.sandbox.images.program import environment
from prorl.sandbox.images.resolve import Lease
from prorl.sandbox.images.settings import ImageSettings
from prorl.sandbox.images.sif import find_squashfs
from prorl.sandbox.inside import tree

UNSQUASHFS = "unsquashfs"
SQUASHFUSE = ("squashfuse_ll", "squashfuse")
DEVICE = "/dev/fuse"
MOUNT_WITHIN = 20.0
UNPACK_WITHIN = 1800.0
POLL = 0.005
UNSQUASHFS_SOME_LEFT_OUT = 2  # device nodes, which an ordinary user cannot make


class Root:
    """``path`` is the directory as a process started by ``[*enter, program, ...]`` sees it, ``seen`` as we see it."""

    def __init__(self, path: str, seen: str, enter: tuple[str, ...], leases: _Shared | None = None) -> None:
        self.path = path
        self.seen = seen
        self.enter = enter
        self._shared = leases

    async def release(self) -> None:
        """Idempotent. The last one to go ends the mount, and returns when it has ended."""
        shared, self._shared = self._shared, None
        if shared is not None:
            await shared.leave()


class _Shared(msgspec.Struct):
    """What several sandboxes use: a mount, or an unpacked root that must not be removed."""

    users: int = 0
    guarded: Guarded | None = None
    lease: Lease | None = None
    lock: int | None = None
    where: tuple[str, str, tuple[str, ...]] = ("", "", ())

    @property
    def alive(self) -> bool:
        return self.users > 0 and (self.guarded is None or self.guarded.poll() is None)

    async def leave(self) -> None:
        self.users -= 1
        if self.users == 0:
            await self.end()

    async def end(self) -> None:
        try:
            if self.guarded:
                self.guarded.end()
                await to_its_end(self.guarded.wait)
        finally:
            if self.lease:
                self.lease.close()
            if self.lock is not None:
                os.close(self.lock)
                self.lock = None


class Roots:
    def __init__(self, settings: ImageSettings, cache: ImageCache) -> None:
        self._settings = settings
        self._cache = cache
        self._shared: dict[str, _Shared] = {}
        self._making: dict[str, asyncio.Lock] = {}
        self._is_root = os.geteuid() == 0
        self.why_no_fuse = self._find_fault()
        self.prefer_unpacking = False

    @property
    def why_no_unpacking(self) -> str | None:
        return None if shutil.which(UNSQUASHFS) else f"not installed: {UNSQUASHFS}"

    async def take(self, lease: Lease) -> Root:
        """A directory of a leased image. The lease is ours from now on: ``release`` closes it."""
        image = lease.image
        if image.path is None or image.digest is None:
            raise SandboxFault("the host's own /usr has no directory of its own", code="image_reference")
        if image.kind == "folder":
            return Root(image.path, image.path, ())
        try:
            async with self._making.setdefault(image.digest, asyncio.Lock()):
                shared = self._shared.get(image.digest)
                if shared is None or not shared.alive:
                    shared = await self._make(Path(image.path), image.digest)
                    shared.lease = lease
                    self._shared[image.digest] = shared
                else:
                    lease.close()
                shared.users += 1
                return Root(*shared.where, shared)
        except BaseException:
            lease.close()
            raise

    async def _make(self, sif: Path, digest: str) -> _Shared:
        unpack = self.prefer_unpacking and self._settings.roots == "auto" and self.why_no_unpacking is None
        if not unpack and self.why_no_fuse is None:
            try:
                return await self._mount(sif)
            except SandboxFault as fault:
                if self._settings.roots == "fuse":
                    raise
                self.why_no_fuse = str(fault)
        if self._settings.roots == "fuse":
            raise SandboxFault(f"images cannot be mounted here: {self.why_no_fuse}", code="no_fuse")
        return await self._unpack(sif, digest)

    def _find_fault(self) -> str | None:
        """Why FUSE cannot be used here, as far as can be told without mounting."""
        if self._settings.roots == "unpack":
            return "[sandbox.images] roots is unpack"
        missing = [name for name in ("unshare", "nsenter") if shutil.which(name) is None]
        if not any(shutil.which(name) for name in SQUASHFUSE):
            missing.append("squashfuse")
        if missing:
            return f"not installed: {', '.join(missing)}"
        if not os.access(DEVICE, os.R_OK | os.W_OK):
            return f"{DEVICE} may not be opened by this user"
        return None

    async def _mount(self, sif: Path) -> _Shared:
        program = next(found for name in SQUASHFUSE if (found := shutil.which(name)))
        offset = (await asyncio.to_thread(find_squashfs, sif)).offset
        point = tempfile.mkdtemp(prefix="prorl-root-")
        namespaces = ["unshare", "--mount", "--propagation", "slave"]
        options = f"ro,offset={offset}"
        enter = ["nsenter", "--mount"]
        if self._is_root:
            options += ",allow_other"  # sandboxes run as uids of their own
        else:
            namespaces += ["--user", "--map-root-user"]
            enter += ["--user", "--preserve-credentials"]
        argv = [*namespaces, program, "-f", "-o", options, str(sif), point]
        try:
            guarded = Guarded(argv, env=environment({}), remove=[Path(point)])
        except BaseException:
            os.rmdir(point)  # noqa: PTH106
            raise
        try:
            pid = await self._mounted(guarded, point)
        except BaseException:
            guarded.end()
            await to_its_end(guarded.wait)
            raise
        where = (point, f"/proc/{pid}/root{point}", (*enter, "--target", str(pid), "--"))
        return _Shared(guarded=guarded, where=where)

    async def _mounted(self, guarded: Guarded, point: str) -> int:
        """The pid of squashfuse, once it has mounted."""
        os.set_blocking(guarded.output.fileno(), False)
        deadline = time.monotonic() + MOUNT_WITHIN
        needle = f" {point} ".encode()
        while guarded.poll() is None and time.monotonic() < deadline:
            for process in tree.descendants(guarded.pid):
                if needle in _mounts(process.pid):
                    return process.pid
            await asyncio.sleep(POLL)
        said = (guarded.output.read() or b"").decode("utf-8", "replace").strip()
        raise SandboxFault(f"squashfuse did not mount the image: {said or 'no word of why'}", code="no_fuse")

    async def _unpack(self, sif: Path, digest: str) -> _Shared:
        target = self._cache.root(digest)
        lock_file = target.with_name(f"{target.name}.lock")
        while True:
            async with self._cache.lock(f"root-{digest}") as building:
                if not target.is_dir():
                    await self._unsquash(sif, digest, target, building)
                lock_file.touch(exist_ok=True)
                lock = await locks.shared(lock_file)
            if lock is not None and target.is_dir():
                touch(lock_file)
                return _Shared(lock=lock, where=(str(target), str(target), ()))
            if lock is not None:
                os.close(lock)

    async def _unsquash(self, sif: Path, digest: str, target: Path, building: int) -> None:
        program = shutil.which(UNSQUASHFS)
        if program is None:
            advice = "install squashfs-tools, name a rootfs folder, or take the apptainer runtime"
            raise SandboxFault(f"{sif} cannot be mounted ({self.why_no_fuse}) nor unpacked: {advice}", code="no_fuse")
        offset = (await asyncio.to_thread(find_squashfs, sif)).offset
        part = self._cache.part(f"root-{digest}")
        argv = [program, "-no-progress", "-no-xattrs", "-offset", str(offset), "-dest", str(part), str(sif)]
        try:
            done = await run(argv, env=environment({}), timeout=UNPACK_WITHIN, on_line=lambda _: None, locks=[building])
            if done.code not in (0, UNSQUASHFS_SOME_LEFT_OUT) or not part.is_dir():
                raise SandboxFault(f"{sif} cannot be unpacked: {done.tail}", code="bad_image")
            await asyncio.to_thread(os.sync)  # a power cut must not leave a root with empty files in it
            part.replace(target)
        except TimeoutError as error:
            raise SandboxFault(f"unpacking {sif} took too long", code="image_timeout") from error
        finally:
            await asyncio.to_thread(remove_tree, part)


def _mounts(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/mountinfo").read_bytes()
    except OSError:  # it has ended
        return b""
