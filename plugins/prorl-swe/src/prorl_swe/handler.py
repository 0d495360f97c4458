"""The domain: a repository with a bug, a sandbox to repair it in, and hidden tests, run where the agent never was."""

from __future__ import annotations

import asyncio
import base64
import logging
import shlex
import time
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from prorl.agent import ToolAgentHandler
from prorl.api import (
    ConfigError,
    Fault,
    GraderFault,
    InitOutput,
    Job,
    JobCancelled,
    Message,
    Output,
    Sandbox,
    SandboxFault,
    SandboxSpec,
    TaskFault,
)
from prorl_swe.grading.grader import Grader
from prorl_swe.grading.verdict import Verdict
from prorl_swe.patches.patch import Patch
from prorl_swe.patches.take import PROGRAMS, take_patch
from prorl_swe.prompt import SYSTEM_PROMPT, describe
from prorl_swe.repository.cache import CacheLease, RepositoryCache
from prorl_swe.repository.prepared import Prepared
from prorl_swe.rows import ImageSource, Instance, read_row
from prorl_swe.settings import SweSettings, SweTable

log = logging.getLogger("prorl_swe")
PREPARATION_S = 60.0
ATTEMPTS = 3


class SweHandler(ToolAgentHandler):
    """Rewards a repair by tests that the agent has not seen. What it leaves in its working tree is what counts, also
    when its time, its turns or its context came to an end before it said so."""

    tools = ("execute_bash", "str_replace_editor", "finish")
    system_prompt = SYSTEM_PROMPT
    grades_unfinished_runs = True

    def __init__(self) -> None:
        self._repositories: RepositoryCache | None = None
        self._at_once: asyncio.Semaphore | None = None

    async def init(self, job: Job) -> InitOutput:
        settings = self.settings_of(job)
        sources = job.services.table(SweTable).sources
        instance = await asyncio.to_thread(read_row, job.instance, settings.format, settings.images, sources)
        began = time.monotonic()
        lease = await self._prepared(job, instance, settings)
        job.exit_stack.callback(lease.close)
        seconds = {"repository": time.monotonic() - began}
        job.metadata = {"instance": instance, "prepared": lease.prepared, "seconds": seconds}
        return await super().init(job)

    def messages(self, job: Job) -> list[Message]:
        about = describe(job.metadata["instance"], _prepared(job).worktree, self.settings_of(job).instructions)
        return [Message(role="user", content=about)]

    async def open_sandbox(self, job: Job) -> Sandbox:
        began = time.monotonic()
        sandbox = await job.services.sandbox(_prepared(job).spec, runtime=self.settings_of(job).runtime)
        job.metadata["seconds"]["sandbox"] = time.monotonic() - began
        return sandbox

    async def prepare(self, job: Job, sandbox: Sandbox | None) -> dict[str, Any]:
        if sandbox is None:
            raise TaskFault(
                "none of the tools works in a sandbox, so nothing can be repaired: set `tools`", code="tools"
            )
        if hidden := job.metadata["instance"].hidden:
            await _take_away(sandbox, hidden)
        await _check_programs(sandbox)
        if activate := _prepared(job).activate:
            await sandbox.act("bash", {"command": activate}, timeout=PREPARATION_S)
        return job.metadata

    async def collect(self, job: Job) -> dict[str, Any]:
        """The patch; where it could not be taken, why."""
        began = time.monotonic()
        limit = int(self.settings_of(job).patch_mb * (1 << 20))
        try:
            taken: dict[str, Any] = {"patch": await take_patch(cast("Sandbox", job.runtime), _prepared(job), limit)}
        except Fault as fault:
            log.warning("job %s: its patch could not be taken: %s", job.id, fault)
            taken = {"no_patch": str(fault)}
        job.metadata["seconds"]["patch"] = time.monotonic() - began
        return taken

    async def run_exception(self, job: Job, exc: BaseException) -> Output:
        job.run_output = await super().run_exception(job, exc)
        job.eval_output = self.eval_exception(job, exc)  # a run that is not graded shows its work all the same
        return job.run_output

    def eval_exception(self, job: Job, exc: BaseException) -> Output:
        about = _about(job)
        return {**about, "metrics": {**super().eval_exception(job, exc)["metrics"], **about["metrics"]}}

    async def grade(self, job: Job) -> dict[str, Any]:
        settings = self.settings_of(job)
        patch = job.run_output.get("patch")
        if not isinstance(patch, Patch):
            raise GraderFault(
                f"the agent's patch could not be taken: {job.run_output.get('no_patch')}", code="no_patch"
            )
        if patch.problem is not None or not patch.data:
            reason = patch.problem or "nothing was changed"
            return {"reward": 0.0, "resolved": False, "reason": reason, **_about(job)}
        with job.services.waiting():
            await self._turn(job).acquire()
        try:
            grader = self._grader(job, settings)
            graded = await grader.grade(patch)
        finally:
            self._turn(job).release()
        job.metadata["seconds"] |= graded.seconds
        verdict, about = graded.verdict, _about(job)
        reward = fraction(verdict) if settings.reward == "fraction" else float(verdict.resolved)
        return {
            "reward": reward,
            "resolved": verdict.resolved,
            "reason": verdict.reason,
            "metrics": {**about["metrics"], **counts(verdict), "dropped": list(graded.dropped)},
            "artifacts": {**about["artifacts"], "test_log": graded.log},
        }

    async def close(self) -> None:
        if self._repositories is not None:
            await self._repositories.close()

    def settings_of(self, job: Job) -> SweSettings:
        settings = job.settings if job.settings is not None else SweSettings()
        if not isinstance(settings, SweSettings):
            raise ConfigError(f"swe needs SweSettings, not {type(settings).__name__}")
        return settings

    async def _prepared(self, job: Job, instance: Instance, settings: SweSettings) -> CacheLease:
        """Many jobs wait for one of them to prepare their repository. When that one is cancelled, or its sandbox lost,
        it is the turn of another."""
        mine = False

        async def start(spec: SandboxSpec) -> Sandbox:
            nonlocal mine
            mine = True
            return await job.services.sandbox(spec, runtime=settings.runtime)

        for _ in range(ATTEMPTS - 1):
            try:
                return await self._cache(job).prepare(instance, settings.sandbox, start=start)
            except (SandboxFault, JobCancelled):
                if mine or not isinstance(instance.source, ImageSource):
                    raise
        return await self._cache(job).prepare(instance, settings.sandbox, start=start)

    def _cache(self, job: Job) -> RepositoryCache:
        if self._repositories is None:
            table = job.services.table(SweTable)
            self._repositories = RepositoryCache(table.cache, max_gb=table.cache_gb)
        return self._repositories

    def _grader(self, job: Job, settings: SweSettings) -> Grader:
        async def open_sandbox(spec: SandboxSpec) -> Sandbox:
            spec = msgspec.structs.replace(spec, limits=settings.grader_limits)
            return await job.services.sandbox(spec, runtime=settings.grader_runtime or settings.runtime)

        return Grader(
            job.metadata["instance"],
            _prepared(job),
            open_sandbox,
            test_timeout=settings.test_timeout_s,
            tests_timeout=settings.tests_timeout_s,
        )

    def _turn(self, job: Job) -> asyncio.Semaphore:
        """More suites at once than processors would run each other into their limits."""
        if self._at_once is None:
            self._at_once = asyncio.Semaphore(job.services.table(SweTable).graders)
        return self._at_once


def _prepared(job: Job) -> Prepared:
    prepared: Prepared = job.metadata["prepared"]
    return prepared


async def _take_away(sandbox: Sandbox, paths: Sequence[str]) -> None:
    """Tests that lie in an image beside its repository."""
    words = shlex.join(paths)
    command = f'rm -rf -- {words}; for path in {words}; do [ ! -e "$path" ] || exit 1; done'
    done = await sandbox.act("bash", {"command": command}, timeout=PREPARATION_S)
    if done.outcome != "ok" or done.data.get("exit_code") != 0:
        raise SandboxFault(f"hidden tests could not be taken out of the agent's sandbox: {words}", code="hidden_tests")


async def _check_programs(sandbox: Sandbox) -> None:
    """Now: once the agent was in there, what is missing is its own doing."""
    command = f'for name in {shlex.join(PROGRAMS)}; do command -v "$name" >/dev/null || echo "$name"; done'
    found = await sandbox.act("bash", {"command": command}, timeout=PREPARATION_S)
    if missing := found.output.split():
        raise SandboxFault(f"there is no {', '.join(missing)} in the sandbox, to take patches with", code="programs")


def _about(job: Job) -> dict[str, dict[str, Any]]:
    """What a result says of the agent's work whatever it is worth. ``git apply`` takes the patch as it is; it is in
    base64 where it is not UTF-8, and ``patch_encoding`` says so."""
    metrics: dict[str, Any] = {"seconds": {what: round(spent, 3) for what, spent in job.metadata["seconds"].items()}}
    patch = job.run_output.get("patch")
    if not isinstance(patch, Patch):
        return {"metrics": metrics, "artifacts": {}}
    try:
        text = {"patch": patch.data.decode()}
    except UnicodeDecodeError:
        text = {"patch": base64.b64encode(patch.data).decode("ascii"), "patch_encoding": "base64"}
    metrics |= {"patch_bytes": len(patch.data), "patch_files": len(patch.files)}
    return {"metrics": metrics, "artifacts": {**text, "files": list(patch.files)}}


def counts(verdict: Verdict) -> dict[str, int]:
    passed, kept = len(verdict.f2p_passed), len(verdict.p2p_kept)
    return {
        "f2p": passed + len(verdict.f2p_failed),
        "f2p_passed": passed,
        "p2p": kept + len(verdict.p2p_broken),
        "p2p_kept": kept,
    }


def fraction(verdict: Verdict) -> float:
    """The share of F2P that passed times the share of P2P that did not break: 0 for what mends nothing, however little
    it breaks, and 1 for what is resolved, and for nothing else."""
    number = counts(verdict)
    share = number["f2p_passed"] / max(1, number["f2p"])
    if number["p2p"]:
        share *= number["p2p_kept"] / number["p2p"]
    return share if verdict.resolved or share < 1 else 0.0
