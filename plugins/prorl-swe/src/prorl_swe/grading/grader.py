"""A patch, graded in a sandbox that the agent never touched.

::

    base ─┬─ test patch ───────────────────────┐ does not apply: the row's fault, masked
          └─ agent's patch ─ the grader's own ─┴─▶ tree ──▶ supervisor ──▶ report ──▶ verdict
             does not apply: 0   put back                       │
                                                no test ran: once more without the agent's patch:
                                                that runs: the agent's fault, 0; if not: masked
"""

from __future__ import annotations

import importlib.resources
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec

from prorl.api import GraderFault, Sandbox, SandboxFault, SandboxSpec
from prorl.api.sandbox import Bind
from prorl_swe.grading.graded import Graded
from prorl_swe.grading.logs import read_log
from prorl_swe.grading.program import program_of, shell_command
from prorl_swe.grading.resolve import failing, resolve
from prorl_swe.grading.supervised import LostError, Said, run_supervised
from prorl_swe.grading.tree import Built, build_tree
from prorl_swe.grading.verdict import Report
from prorl_swe.patches.patch import Patch
from prorl_swe.repository.prepared import Prepared
from prorl_swe.rows.instance import Instance

OpenSandbox = Callable[[SandboxSpec], Awaitable[Sandbox]]
RUNNER_AT = "/opt/prorl-swe/runner"
PACKAGE = "prorl_inside"
PREPARE_S = 180.0
CONTROL_S = 300.0
KEPT_OUTPUT = 60_000
KEPT_LOG = 16 << 20

log = logging.getLogger("prorl_swe")


class Grader:
    """Grades patches for one task. ``test_timeout`` bounds one test and ``tests_timeout`` all of them, in seconds."""

    def __init__(
        self,
        instance: Instance,
        prepared: Prepared,
        open_sandbox: OpenSandbox,
        *,
        test_timeout: float = 60.0,
        tests_timeout: float = 900.0,
    ) -> None:
        self._instance = instance
        self._prepared = prepared
        self._open_sandbox = open_sandbox
        self._test_timeout = test_timeout
        self._tests_timeout = tests_timeout

    async def grade(self, patch: Patch) -> Graded:
        """Raises ``GraderFault`` when the grader, or the row, and not the patch, is at fault."""
        seconds: dict[str, float] = {}
        async with self._sandbox(seconds) as sandbox:
            with _timed(seconds, "apply"):
                built = await self._build(sandbox, patch.data)
            if built.rejected is not None:
                reason = f"the patch does not apply: {built.rejected}"
                return Graded(verdict=failing(self._instance, reason), seconds=seconds)
            with _timed(seconds, "tests"):
                said = await self._run(sandbox, built)
        if said is None or not self._has_run(said):
            with _timed(seconds, "control"):
                await self._control()
        report = Report(outcomes={}, complete=False, seconds=0.0) if said is None else self._report(said)
        verdict = resolve(self._instance, report)
        if said is None:
            verdict = failing(self._instance, "the tests ended the process that runs them")
        elif not report.outcomes and not report.tampering:
            verdict = failing(self._instance, "with the patch no test could be run")
        return Graded(verdict=verdict, report=report, dropped=built.dropped, seconds=seconds)

    def _has_run(self, said: Said) -> bool:
        return bool(said.outcomes) if self._instance.runner != "log" else bool(self._report(said).outcomes)

    def _report(self, said: Said) -> Report:
        outcomes = said.outcomes
        if self._instance.runner == "log":
            outcomes = read_log(self._instance.log_format or "pytest", said.log)
        return Report(
            outcomes=outcomes,
            complete=said.complete,
            seconds=said.seconds,
            log=said.log[-KEPT_OUTPUT:],
            tampering=said.tampering,
            notes=said.notes,
        )

    async def _control(self) -> None:
        """Raises ``GraderFault`` if the tests cannot even be begun where the agent's patch has no part in it."""
        async with self._sandbox({}) as sandbox:
            built = await self._build(sandbox, b"")
            said = await self._run(sandbox, built, control=True)
        if said is None or not said.ready:
            raise GraderFault(
                f"the tests cannot be run even without the agent's patch: {_last(said)}", code="environment"
            )
        if self._instance.runner != "log" and self._instance.pass_to_pass and not said.collected:
            raise GraderFault(
                f"without the agent's patch none of the row's tests is there: {_last(said)}", code="environment"
            )

    async def _build(self, sandbox: Sandbox, patch: bytes) -> Built:
        try:
            return await build_tree(sandbox, self._instance, self._prepared, patch, timeout=PREPARE_S)
        except SandboxFault as fault:
            raise GraderFault(f"the grader's sandbox was lost: {fault}", code="sandbox") from fault

    async def _run(self, sandbox: Sandbox, built: Built, *, control: bool = False) -> Said | None:
        """``None`` when the supervisor was lost."""
        request = self._request(built, control=control)
        try:
            return await run_supervised(sandbox, self._prepared, RUNNER_AT, request)
        except LostError as error:
            log.warning("the supervisor of %s was lost: %s", self._instance.instance_id, error)
            return None

    def _request(self, built: Built, *, control: bool) -> dict[str, Any]:
        instance, worktree = self._instance, self._prepared.worktree
        program, environment = program_of(instance, built.files, worktree)
        by_log = instance.runner == "log"
        names = [*instance.fail_to_pass, *instance.pass_to_pass]
        if control and not by_log and not program["script"]:
            program["arguments"] = [*program["arguments"], "--collect-only", "-q"]
        return {
            "command": shell_command(instance) if by_log else None,
            "program": program,
            "env": environment,
            "names": names,
            "match": instance.match,
            "changed": [f"{worktree}/{path}" for path in built.changed],
            "cwd": worktree,
            "python": self._prepared.python,
            "test_s": self._test_timeout,
            "total_s": min(CONTROL_S, self._tests_timeout) if control else self._tests_timeout,
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


@contextmanager
def _timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    began = time.monotonic()
    try:
        yield
    finally:
        seconds[step] = time.monotonic() - began


def _last(said: Said | None) -> str:
    lines = said.log.strip().splitlines() if said else []
    return " / ".join(lines[-5:])[-1000:] or "nothing was said"
