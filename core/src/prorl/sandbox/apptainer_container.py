"""All that one container has on this machine, from its first folder to its last process, and the ending of it all.

What is had is on record in the journal before it could be left behind, so that :func:`end_left` can do the same for the
containers of a server that was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import secrets
from pathlib import Path

from prorl.api.errors import SandboxFault
from prorl.api.sandbox import SandboxSpec
from prorl.host.remove import remove_tree
from prorl.sandbox import journal, leases, limits, sessions
from prorl.sandbox.apptainer_layer import PREFIX, Layer
from prorl.sandbox.images.resolve import Lease as ImageLease
from prorl.sandbox.images.roots import Root as ImageRoot
from prorl.sandbox.inside import tree
from prorl.sandbox.process import Child, kill_and_wait
from prorl.sandbox.settings import SandboxSettings

log = logging.getLogger(__name__)
UNMOUNT_WITHIN = 0.5


class Container:
    """``end`` gives back whatever was had so far, and is for one caller. Making one blocks for a millisecond."""

    def __init__(
        self, spec: SandboxSpec, settings: SandboxSettings, book: journal.Journal, groups: limits.ControlGroups
    ) -> None:
        self.id = f"apptainer-{secrets.token_hex(6)}"
        self.child: Child | None = None
        self.image: ImageLease | ImageRoot | None = None
        self.groups: list[Path] = []
        self._init: int | None = None
        self._book = book
        self.address = leases.take(Path(settings.addresses))
        try:
            self.layer = Layer(settings.scratch, in_memory=os.geteuid() == 0)
            try:
                self.record()
                self.layer.make(spec)
                self.groups = groups.make(self.id, spec.limits)
            except BaseException:
                self._give_back()
                raise
        except OSError as error:
            raise SandboxFault(f"cannot set up a container: {error}", code="start_failed") from error
        finally:
            if not hasattr(self, "layer"):
                self.address.release()

    def record(self, witnesses: tuple[sessions.Witness, ...] = ()) -> None:
        """Raises :class:`OSError`."""
        if self.child and not witnesses:
            leader = sessions.witness(self.child.pid)
            witnesses = (leader,) if leader else ()
        self._book.begin(
            journal.Begun(
                id=self.id,
                boot=journal.boot_id(),
                folder=str(self.layer.folder),
                address=self.address.address,
                session=self.child.pid if self.child else 0,
                witnesses=witnesses,
            )
        )

    async def settle(self) -> None:
        """It is up: find its init, and put all of its processes on record."""
        assert self.child is not None  # noqa: S101 - it said hello
        members = await asyncio.to_thread(sessions.members, self.child.pid)
        self._init = _open_init(members)
        with contextlib.suppress(OSError):  # a full disk; its leader is on record
            self.record(tuple(members))

    async def end(self) -> None:
        """End every process, then remove every file."""
        if self.child:
            await self.end_child(self.child)
        if isinstance(self.image, ImageRoot):
            await self.image.release()
        elif self.image:
            self.image.close()
        await asyncio.to_thread(self._give_back)

    async def end_child(self, child: Child) -> None:
        """Kill init, and with it all in the namespace; leave the leader a moment to unmount; kill the session's rest.

        The leader is not reaped before, so the session's number is its own.
        """
        if self._init is None:
            self._init = _open_init(await asyncio.to_thread(sessions.members, child.pid))
        if self._init is not None:
            init, self._init = self._init, None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(UNMOUNT_WITHIN):
                    await kill_and_wait(init)
                    await child.ended()
        await asyncio.to_thread(sessions.end, child.pid)
        await child.wait()
        child.close_stderr()

    def _give_back(self) -> None:
        limits.remove(self.groups)
        remove_tree(self.layer.folder)
        if self.layer.folder.exists():
            log.warning("%s could not be removed: is newuidmap on PATH?", self.layer.folder)
        self.address.release()
        self._book.end(self.id)


def end_left(entry: journal.Begun, groups: limits.ControlGroups, addresses: Path) -> int:
    """End one container of a server that is no more; returns how many things were ended."""
    ended = 0
    folder = Path(entry.folder) if entry.folder else None
    if entry.boot == journal.boot_id():
        if entry.session:
            ended += sessions.end(entry.session, entry.witnesses)
        elif folder:
            ended += _end_unrecorded(folder)
        limits.remove(groups.find(entry.id))
        if entry.address:
            ended += leases.reclaim(addresses, entry.address)
    # The journal is a file: it may name what it likes, and we remove only what we make.
    if folder and folder.name.startswith(PREFIX) and folder.is_dir() and not folder.is_symlink():
        remove_tree(folder)
        ended += 1
    return ended


def _end_unrecorded(folder: Path) -> int:
    """The server died after starting it and before writing its pid down. Its own settings name the folder."""
    ended = 0
    for process in tree.processes():
        with contextlib.suppress(OSError):
            about = (
                Path(f"/proc/{process.pid}/cmdline").read_bytes() + Path(f"/proc/{process.pid}/environ").read_bytes()
            )
            if os.fsencode(folder) in about and process.session == process.pid:
                ended += sessions.end(process.pid, [sessions.Witness(process.pid, process.started)])
    return ended


def _open_init(members: list[sessions.Witness]) -> int | None:
    """A pidfd of the pid namespace's init: whose innermost pid is 1."""
    for member in members:
        with contextlib.suppress(OSError):
            pidfd = os.pidfd_open(member.pid)
            status = Path(f"/proc/{member.pid}/status").read_text()
            if re.search(r"^NSpid:(\t\d+)+\t1$", status, re.MULTILINE) and member.alive():
                return pidfd
            os.close(pidfd)
    return None
