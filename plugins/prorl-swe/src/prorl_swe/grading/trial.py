"""The named tests, run with one patch.

Each process of tests has a sandbox of its own, made for it: what one leaves behind (in the tree, in the user's home, in
an image's packages) the next one never sees, so that ending a process is of no use to whoever wants the next one
otherwise.
"""

from __future__ import annotations

import importlib.resources
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec

from prorl.api import GraderFault, Sandbox, SandboxFault, SandboxSpec
from prorl.api.sandbox import Bind
from prorl_swe.grading.logs import RANKS
from prorl_swe.grading.program import program_of, shell_command
from prorl_swe.grading.supervised import LostError, Said, run_supervised
from prorl_swe.grading.tree import Built, UntestableError, build_tree
from prorl_swe.repository.prepared import Prepared
from prorl_swe.rows.instance import Instance

OpenSandbox = Callable[[SandboxSpec], Awaitable[Sandbox]]
RUNNER_AT = "/opt/prorl-swe/runner"
PACKAGE = "prorl_inside"
PREPARE_S = 180.0
KEPT_OUTPUT = 60_000
KEPT_LOG = 16 << 20
FRUITLESS = 2  # processes in a row in which no test came to its end

log = logging.getLogger("prorl_swe")


class Tried(msgspec.Struct, kw_only=True):
    """``said`` is ``None`` when the supervisor was lost, or the patch does not apply (``built`` says so)."""

    built: Built
    said: Said | None = None


class Trial:
    """Runs a row's tests. ``test_timeout``: of one of them, in seconds."""

    def __init__(
        self, instance: Instance, prepared: Prepared, open_sandbox: OpenSandbox, *, test_timeout: float
    ) -> None:
        self._instance = instance
        self._prepared = prepared
        self._open_sandbox = open_sandbox
        self._test_timeout = test_timeout

    async def run(
        self,
        patch: bytes,
        names: Sequence[str],
        total: float,
        *,
        collect_only: bool = False,
        seconds: dict[str, float] | None = None,
    ) -> Tried:
        """``total`` bounds all of the tests, in seconds; ``seconds`` is added to by step. Raises
        :class:`UntestableError` where there is no tree to be tested, and ``GraderFault`` where that is the grader's or
        the row's fault.
        """
        spent = {} if seconds is None else seconds
        deadline = time.monotonic() + total
        merged: Said | None = None
        fruitless = 0
        while True:
            async with self._sandbox(spent) as sandbox:
                with _timed(spent, "apply"):
                    built = await self._build(sandbox, patch)
                if built.rejected is not None:
                    return Tried(built=built)
                done = [] if merged is None else list(merged.outcomes)
                request = self._request(built, names, done, collect_only=collect_only)
                request["total_s"] = max(1.0, deadline - time.monotonic())
                with _timed(spent, "tests"):
                    said = await self._supervised(sandbox, request)
            if said is None:
                return Tried(built=built)
            before = 0 if merged is None else len(merged.outcomes)
            merged = said if merged is None else joined(merged, said)
            fruitless = 0 if len(merged.outcomes) > before else fruitless + 1
            if merged.complete or self._instance.runner == "log":
                break
            if fruitless == FRUITLESS:
                merged.notes += ("the tests could not be gone on with: no test came to its end, twice",)
                break
            if time.monotonic() >= deadline:
                merged.notes += (f"all tests took longer than {total:g} s",)
                break
        return Tried(built=built, said=merged)

    async def _build(self, sandbox: Sandbox, patch: bytes) -> Built:
        try:
            return await build_tree(sandbox, self._instance, self._prepared, patch, timeout=PREPARE_S)
        except SandboxFault as fault:
            raise UntestableError(f"the sandbox was lost: {fault}") from fault

    async def _supervised(self, sandbox: Sandbox, request: dict[str, Any]) -> Said | None:
        try:
            return await run_supervised(sandbox, self._prepared, RUNNER_AT, request)
        except LostError as error:
            log.warning("the supervisor of %s was lost: %s", self._instance.instance_id, error)
            return None

    def _request(
        self, built: Built, names: Sequence[str], done: Sequence[str], *, collect_only: bool
    ) -> dict[str, Any]:
        instance, worktree = self._instance, self._prepared.worktree
        program, environment = program_of(instance, built.files, worktree)
        by_log = instance.runner == "log"
        if collect_only and not by_log and not program["script"]:
            program["arguments"] = [*program["arguments"], "--collect-only", "-q"]
        return {
            "command": shell_command(instance) if by_log else None,
            "program": program,
            "env": environment,
            "cwd": worktree,
            "worktree": worktree,
            "python": self._prepared.python,
            "names": list(names),
            "match": instance.match,
            "done": list(done),
            "changed": [f"{worktree}/{path}" for path in built.changed],
            "contents": {f"{worktree}/{path}": identity for path, identity in built.contents.items()},
            "test_s": self._test_timeout,
            "kept_output": KEPT_LOG if by_log else KEPT_OUTPUT,
            "word": secrets.token_hex(16),
            "word_out": secrets.token_hex(16),
            "probe": f"test_{secrets.token_hex(8)}",
        }

    @asynccontextmanager
    async def _sandbox(self, seconds: dict[str, float]) -> AsyncIterator[Sandbox]:
        runner = Bind(source=str(importlib.resources.files("prorl_swe") / "inside"), target=f"{RUNNER_AT}/{PACKAGE}")
        spec = self._prepared.spec
        spec = msgspec.structs.replace(spec, network=False, binds=(*spec.binds, runner))
        try:
            with _timed(seconds, "grader_sandbox"):
                sandbox = await self._open_sandbox(spec)
        except SandboxFault as fault:
            raise GraderFault(f"no sandbox for the grader: {fault}", code="sandbox") from fault
        try:
            yield sandbox
        finally:
            await sandbox.stop(grace=0)


def joined(first: Said, then: Said) -> Said:
    """What two processes of tests said, one after the other. Of one name the worst counts."""
    outcomes = dict(first.outcomes)
    for name, outcome in then.outcomes.items():
        if name not in outcomes or RANKS.index(outcome) > RANKS.index(outcomes[name]):
            outcomes[name] = outcome
    return Said(
        outcomes=outcomes,
        ready=first.ready or then.ready,
        complete=then.complete,
        seconds=first.seconds + then.seconds,
        log=(first.log + then.log)[-KEPT_OUTPUT:],
        collected=tuple(dict.fromkeys((*first.collected, *then.collected))),
        marked=tuple(dict.fromkeys((*first.marked, *then.marked))),
        tampering=tuple(dict.fromkeys((*first.tampering, *then.tampering))),
        notes=(*first.notes, *then.notes),
    )


@contextmanager
def _timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    began = time.monotonic()
    try:
        yield
    finally:
        seconds[step] = seconds.get(step, 0.0) + time.monotonic() - began
