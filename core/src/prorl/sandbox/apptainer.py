"""Sandboxes by Apptainer (or Singularity): images as they are used on HPC clusters, no root, no daemon, no instance.

::

    our process ── apptainer exec, leader of a session ── action server, init of the pid namespace ── bash, IPython
                     └─ squashfuse, fuse-overlayfs: groups of their own, same session

Ending one: the action server is asked (``grace``); then its process is killed, and with it all in the namespace; then
the leader has a moment to take its mounts down; then whatever is left of the session is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from prorl.api.errors import SandboxFault
from prorl.api.sandbox import Probe, SandboxSpec
from prorl.host.run import to_its_end
from prorl.sandbox import apptainer_probe, host, journal, leases, limits, seccomp
from prorl.sandbox.apptainer_command import Root, command, environment, hosts_own
from prorl.sandbox.apptainer_container import Container, end_left
from prorl.sandbox.binds import check_binds
from prorl.sandbox.channel import Channel
from prorl.sandbox.images.program import require_apptainer
from prorl.sandbox.images.resolve import Images
from prorl.sandbox.images.roots import Roots
from prorl.sandbox.inside import frames
from prorl.sandbox.process import Spawner
from prorl.sandbox.served import ServedSandbox, connect, start_or_undo
from prorl.sandbox.settings import SandboxSettings

ADDRESS = "PRORL_ADDRESS"
HOME = "/tmp/home"  # noqa: S108
PYTHON = "python3"


class Apptainer:
    """Implements :class:`prorl.api.SandboxRuntime`."""

    name = apptainer_probe.NAME

    def __init__(self, settings: SandboxSettings | None = None) -> None:
        self._settings = settings or SandboxSettings()
        self._spawner = Spawner(self.name)
        self._as_root = os.geteuid() == 0
        self._state = journal.state_folder(self._settings.state)
        self._journal = journal.Journal(self._state, self.name)
        self._groups = limits.ControlGroups()
        self._images = Images(self._settings.images, apptainer=self._settings.apptainer)
        unpacked = msgspec.structs.replace(self._settings.images, roots="unpack")
        self._roots = Roots(unpacked, self._images.builder.cache)

    async def prepare(self, image: str | None) -> None:
        """Build the image if need be. Raises :class:`SandboxFault` when it cannot be had."""
        await self._images.resolve(image)

    async def probe(self) -> Probe:
        """Really starts a container, and one with fakeroot."""
        return await apptainer_probe.probe(self, self._settings)

    async def sweep(self) -> int:
        """End what servers that are no more left behind: processes, folders, addresses; nothing of anybody alive."""
        return await asyncio.to_thread(self._sweep)

    async def start(self, spec: SandboxSpec) -> ServedSandbox:
        """Raises :class:`SandboxFault` with what Apptainer said."""
        program = require_apptainer(self._settings.apptainer)
        if spec.fakeroot and self._as_root:
            message = "fakeroot would be root outside too when the server runs as root: run it as an ordinary user"
            raise SandboxFault(message, code="fakeroot_unsupported")
        check_binds(spec)
        return await start_or_undo(self._start(program, spec))

    async def _start(self, program: str, spec: SandboxSpec) -> ServedSandbox:
        container = Container(spec, self._settings, self._journal, self._groups)
        try:
            channel = await self._launch(container, program, spec)
        except BaseException:
            await container.end()
            raise
        return ServedSandbox(
            id=container.id, runtime=self.name, workdir=spec.workdir, channel=channel, kill=lambda: self._end(container)
        )

    async def _end(self, container: Container) -> None:
        """A method, so that a living sandbox holds its runtime and with it the thread that must not end."""
        await container.end()

    async def _launch(self, container: Container, program: str, spec: SandboxSpec) -> Channel:
        uid = self._uid(spec)
        root = await self._root(container, program, spec, uid)
        await to_its_end(container.layer.copy_own, spec)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs, _system_call_filter() as filter_fd:
                arguments = [str(theirs.fileno()), str(filter_fd), "fakeroot" if spec.fakeroot else "user"]
                layer = container.layer
                argv = command(
                    program, layer.shown(spec), root, layer=layer.path, arguments=arguments, as_root=self._as_root
                )
                inherited = [theirs.fileno(), container.address.fd, *([filter_fd] if filter_fd >= 0 else [])]
                container.child = await self._spawner.spawn(
                    limits.enter(container.groups, layer.wrap(argv, spec, uid)),
                    pass_fds=inherited,
                    end=container.end_child,
                    own_session=True,
                    env=environment(program, layer.folder),
                )
            container.record()
            hello = self._hello(container, spec, uid, root)
            channel = await connect(ours, hello, self._settings.start_timeout, container.child.read_stderr)
        except BaseException:
            ours.close()
            raise
        try:
            await container.settle()
        except BaseException:
            await channel.close()
            raise
        return channel

    async def _root(self, container: Container, program: str, spec: SandboxSpec, uid: int) -> Root:
        if spec.image is None:
            python, binds = hosts_own(spec, self._settings.python)
            return Root(str(container.layer.bare_root(uid, _home(spec))), python, binds)
        container.image = lease = await self._images.acquire(spec.image)
        assert lease.image.path is not None  # noqa: S101 - only the host's own has none
        if lease.image.kind == "sif" and apptainer_probe.why_no_sif(program):
            # Apptainer cannot mount it here, and would unpack it at every start: once is enough.
            container.image = unpacked = await self._roots.take(lease)
            return Root(unpacked.path, PYTHON)
        return Root(lease.image.path, PYTHON)

    def _uid(self, spec: SandboxSpec) -> int:
        if self._as_root:
            return self._settings.first_uid + secrets.randbelow(self._settings.uids)
        return 0 if spec.fakeroot else os.geteuid()

    def _hello(self, container: Container, spec: SandboxSpec, uid: int, root: Root) -> dict[str, Any]:
        env = {"HOME": _home(spec), "USER": "agent" if uid else "root", ADDRESS: container.address.address}
        env |= {"LANG": "C.UTF-8", "TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "MPLBACKEND": "Agg"}
        env |= {"TMPDIR": "/tmp", "SHELL": "/bin/bash"}  # noqa: S108
        if spec.image is None:
            env["PATH"] = host.search_path(root.python)
        within = limits.rlimits(spec.limits, container.groups, own_uid=self._as_root)
        return {
            "protocol": frames.PROTOCOL,
            "uid": uid if self._as_root else None,
            "gid": uid,
            "limits": msgspec.to_builtins(within),
            "env": env | spec.env,
            "image_env": spec.image is not None,
            "workdir": spec.workdir,
            "python": root.python if spec.image is None else "",  # an image's is the one that the server runs on
        }

    def _sweep(self) -> int:
        addresses = Path(self._settings.addresses)
        ended = journal.sweep(self._state, self.name, lambda entry: end_left(entry, self._groups, addresses))
        return ended + leases.sweep(addresses)


def _home(spec: SandboxSpec) -> str:
    return "/root" if spec.fakeroot else HOME


@contextlib.contextmanager
def _system_call_filter() -> Iterator[int]:
    """A descriptor of the filter, or -1 where there is none for this machine."""
    if not seccomp.supported():
        yield -1
        return
    fd = seccomp.no_user_namespaces()
    try:
        yield fd
    finally:
        os.close(fd)
