"""What preparing a repository yields: everything that a sandbox, the agent's or the grader's, is started with."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

import msgspec

from prorl.api.sandbox import SandboxSpec
from prorl_swe.rows.instance import Instance

WORKTREE = "/testbed"
# A copy of the base's git directory that the agent cannot write to: patches are taken with it, never with the agent's.
PRISTINE_GIT = "/opt/prorl-swe/base.git"


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A repository at its base, with nothing later than it, shared read-only by all its rollouts.

    ``spec`` starts a sandbox in which the working tree is at ``worktree`` (what is written there is that sandbox's
    own), the pristine git directory at :data:`PRISTINE_GIT` and the environment of the tests where ``python``, its
    interpreter, says. ``base`` is the full id of the base commit. ``activate`` is sourced by a shell before anything
    of the repository is run (images).
    """

    base: str
    worktree: str
    python: str
    spec: SandboxSpec
    activate: str = ""


class Lease(Protocol):
    """A prepared repository in use: it will not be pruned from the cache before ``close`` (idempotent)."""

    prepared: Prepared

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Repositories(Protocol):
    """The cache. What takes long happens once per content, however many ask at once.

    Raises ``TaskFault`` for a row whose repository cannot be made (wrong hash, no such commit, a base patch that does
    not apply), and ``SandboxFault`` for trouble on the way (index or registry not reachable, disk full): either way the
    sample is masked.
    """

    async def prepare(self, instance: Instance, sandbox: SandboxSpec) -> Lease:
        """``sandbox``: what the settings say; the repository is added to it."""
        ...

    async def close(self) -> None: ...
