"""Runtimes and sandboxes, as handlers, tools and runtime plugins see them.

A *runtime* is a kind of sandbox (bubblewrap, apptainer, local); a *sandbox* is one alive. Inside every sandbox runs the
same action server, so a tool asks for an *action* and never knows which runtime it is in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

Outcome = Literal["ok", "timeout", "cancelled", "error"]
OnOutput = Callable[[bytes], Awaitable[None]]
MAX_TRANSFER = 1 << 30


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds on a sandbox; ``None`` is unbounded. What cannot be enforced here is listed by :class:`Probe`."""

    memory_mb: int | None = 2048
    processes: int | None = 512
    file_mb: int | None = 512
    cpu_s: int | None = None
    tmp_mb: int | None = 512


class Bind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file or folder of the host at a path inside. ``writable``: what is written there is written to the host's.
    ``own``: it may be written to, and what is written is this sandbox's alone; the folder itself stays as it is.
    """

    source: str
    target: str
    writable: bool = False
    own: bool = False


class SandboxSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to start. ``image=None`` is the host's own /usr, read-only. The host's environment is never passed on."""

    image: str | None = None
    network: bool = False
    fakeroot: bool = False
    workdir: str = "/workspace"
    env: dict[str, str] = {}
    binds: tuple[Bind, ...] = ()
    limits: Limits = Limits()


class Probe(msgspec.Struct, kw_only=True):
    """What a runtime can do on this machine, found by really starting a sandbox. ``reason`` says why it cannot."""

    runtime: str
    works: bool
    isolation: Literal["full", "partial", "none"]
    reason: str | None = None
    version: str | None = None
    start_ms: float | None = None
    capabilities: dict[str, bool] = {}
    why_not: dict[str, str] = {}


class ActionResult(msgspec.Struct, kw_only=True):
    """The one typed end of an action. ``output`` is what it printed (capped); ``data`` is the action's own answer.

    When output was cut, ``output_file`` is the path inside the sandbox of the file with all of it (or its beginning,
    if not ``output_file_complete``).
    """

    outcome: Outcome
    output: str = ""
    data: dict[str, Any] = {}
    error: str | None = None
    seconds: float = 0.0
    truncated_bytes: int = 0
    output_file: str | None = None
    output_file_complete: bool = False


class Sandbox(Protocol):
    """One sandbox alive. ``stop`` is idempotent and leaves no process, mount, socket or file."""

    @property
    def id(self) -> str: ...

    @property
    def runtime(self) -> str: ...

    @property
    def workdir(self) -> str: ...

    async def act(
        self,
        action: str,
        arguments: Mapping[str, Any],
        *,
        timeout: float,
        on_output: OnOutput | None = None,
    ) -> ActionResult:
        """Run one action (``bash``, ``ipython``, ``read``, ``write``, ...).

        ``timeout`` is in seconds. Raises :class:`~prorl.api.errors.SandboxFault` when the sandbox itself is lost;
        a command that fails or times out is an :class:`ActionResult`.
        """
        ...

    async def upload(
        self, local: str | Path, remote: str, *, timeout: float = 600.0, max_bytes: int = MAX_TRANSFER
    ) -> None:
        """Copy a file to the path ``remote``, or a folder's content into the folder ``remote``, as the agent's user.

        Files, folders and links that stay inside travel; anything else is refused. Raises ``SandboxFault`` with code
        ``transfer_refused``, ``transfer_failed`` or ``transfer_timeout``; what had arrived until then stays.
        """
        ...

    async def download(
        self, remote: str, local: str | Path, *, timeout: float = 600.0, max_bytes: int = MAX_TRANSFER
    ) -> None:
        """Copy a file or folder of the sandbox to ``local``, like :meth:`upload`.

        Nothing a sandbox sends is written outside ``local``, nor more than ``max_bytes`` of it.
        """
        ...

    async def stop(self, *, grace: float = 0.5) -> None: ...


class SandboxRuntime(Protocol):
    """A kind of sandbox. ``sweep`` removes what a killed server left behind and returns how many things it ended."""

    @property
    def name(self) -> str: ...

    async def probe(self) -> Probe: ...

    async def prepare(self, image: str | None) -> None: ...

    async def start(self, spec: SandboxSpec) -> Sandbox: ...

    async def sweep(self) -> int: ...
