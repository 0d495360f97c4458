"""The handler to inherit from for an agent that we did not write: a command in a sandbox, its model calls captured.

::

    class Fix(CommandAgentHandler):
        def command(self, job: Job) -> str:
            return 'cd repo && my-agent --task "$TASK"'

        def env(self, job: Job) -> dict[str, str]:
            return {"TASK": job.instance["problem"]}

        async def grade(self, job: Job) -> dict[str, Any]:
            return {"reward": float("fixed" in job.run_output["output"])}

The command finds the policy where SDKs look for it: ``OPENAI_BASE_URL``, ``OPENAI_API_KEY``, ``ANTHROPIC_BASE_URL``,
``ANTHROPIC_API_KEY``. The sandbox needs no network for that: a relay inside passes the calls on to a Unix socket, which
leads to this job's door and nowhere else.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

from prorl.agent.running import (
    JOB,
    PATIENCE,
    RELAY,
    CommandEnded,
    CommandOutput,
    CommandSettings,
    Printed,
    end_all,
    furnish,
    place,
    start,
    until_over,
)
from prorl.api.capture import Capture
from prorl.api.errors import (
    BudgetExceeded,
    ConfigError,
    GraderFault,
    JobCancelled,
    SandboxFault,
    TaskFault,
    boundary,
)
from prorl.api.handler import AgentHandler, InitOutput, Output
from prorl.api.job import Job
from prorl.api.sandbox import Sandbox

ORIGIN = "{origin}"  # filled in by the relay, which knows its port
TAIL = 1_500


class CommandAgentHandler(AgentHandler):
    """Command, files, grade. The sandbox is there for grading only with ``grading_needs_runtime = True``; nothing that
    the command started is alive by then."""

    grades_unfinished_runs: ClassVar[bool] = True

    @abstractmethod
    def command(self, job: Job) -> str | Sequence[str]:
        """What to run, in the sandbox's working directory: a bash script, or an argv. Called in INIT."""

    @abstractmethod
    async def grade(self, job: Job) -> dict[str, Any]:
        """The verdict on ``job.run_output`` (see :class:`CommandOutput`), as for
        :meth:`prorl.agent.ToolAgentHandler.grade`."""

    def files(self, job: Job) -> Mapping[str, str | bytes | Path]:
        """What to place before: paths in the sandbox (relative ones lie in its working directory), and their content or
        the file or folder of this machine to copy."""
        return {}

    def env(self, job: Job) -> Mapping[str, str]:
        """Further variables of the command's environment. ``{origin}`` in a value becomes the relay's address, such as
        ``http://127.0.0.1:43210``."""
        return {}

    async def prepare(self, job: Job, sandbox: Sandbox) -> dict[str, Any]:
        """Make the sandbox ready, once the files are placed; what is returned becomes ``job.metadata``."""
        return {}

    def settings_of(self, job: Job) -> CommandSettings:
        """The job's settings; the defaults when the record names no settings Struct."""
        settings = job.settings if job.settings is not None else CommandSettings()
        if not isinstance(settings, CommandSettings):
            raise ConfigError(
                f"{type(settings).__name__} must inherit from CommandSettings to be {job.handler}'s settings"
            )
        return settings

    async def init(self, job: Job) -> InitOutput:
        settings = self.settings_of(job)
        with boundary(TaskFault, "the task's command cannot be made"):
            command, files, env = self.command(job), dict(self.files(job)), dict(self.env(job))
        argv = ["bash", "-c", command] if isinstance(command, str) else list(command)
        capture = job.services.capture(max_calls=settings.max_calls)
        folder = (await capture.socket()).parent
        sandbox, inside = await start(job, settings, folder)
        # The agent may read all of this: the key is its own, and good for nothing but its own job.
        about = {"argv": argv, "env": {**capture.environment(ORIGIN), **env}, "socket": f"{inside}/socket"}
        await asyncio.to_thread(furnish, folder, about)
        found = await sandbox.act("bash", {"command": "command -v python3"}, timeout=PATIENCE)
        if found.data.get("exit_code") != 0:
            raise SandboxFault("the sandbox has no python3, which the relay of model calls needs", code="no_python")
        with boundary(TaskFault, "the task cannot be prepared"):
            await place(sandbox, files)
            metadata = await self.prepare(job, sandbox)
        return sandbox, metadata, {"capture": capture, "relay": f"python3 {inside}/{RELAY} {inside}/{JOB}"}

    async def run(self, job: Job) -> Output:
        settings, capture, sandbox = self.settings_of(job), self._capture(job), cast("Sandbox", job.runtime)
        output = job.run_output = cast("Output", _blank())
        printed = Printed(settings.output_chars)
        try:
            result, output["ended"] = await until_over(sandbox, job.config["relay"], settings, capture, printed)
        finally:
            output["calls"], output["output"] = capture.calls, printed.text()
            await capture.close()  # whatever is left of the agent asks for nothing more
        if output["ended"] == "exit":
            output["exit_code"] = result.data.get("exit_code")
        if result.outcome == "error":
            raise SandboxFault(f"the command could not be run: {result.error}", code="command_failed")
        if capture.fault is not None:  # the harness may have made of it what it likes
            raise capture.fault
        if not capture.calls and capture.metrics()["context_overflows"]:
            raise TaskFault("the agent's first prompt does not fit the model's context", code="prompt_too_long")
        if not capture.calls:
            raise TaskFault(_nothing_captured(capture, output), code="nothing_captured")
        return output

    async def eval(self, job: Job) -> Output:
        with boundary(GraderFault, "grading failed"):
            if self.grading_needs_runtime and job.runtime is not None:
                await end_all(job.runtime)
            verdict = await self.grade(job)
        about = self._about(job)
        return {**verdict, **{name: {**about[name], **verdict.get(name, {})} for name in about}}

    def run_exception(self, job: Job, exc: BaseException) -> Output:
        """The work so far, with how it ended."""
        ended: CommandEnded = "fault"
        if isinstance(exc, BudgetExceeded | TimeoutError):
            ended = "timeout"
        elif isinstance(exc, JobCancelled):
            ended = "cancelled"
        job.eval_output = self._about(job)
        return {**_blank(), **job.run_output, "ended": ended}

    def eval_exception(self, job: Job, exc: BaseException) -> Output:
        return self._about(job)

    def _about(self, job: Job) -> dict[str, Any]:
        run = {**_blank(), **job.run_output}
        metrics = {"ended": run["ended"], "exit_code": run["exit_code"], "capture": self._capture(job).metrics()}
        return {"metrics": metrics, "artifacts": {"agent_output": run["output"]}}

    def _capture(self, job: Job) -> Capture:
        return cast("Capture", job.config["capture"])


def _blank() -> CommandOutput:
    return CommandOutput(ended="fault", exit_code=None, output="", calls=0)


def _nothing_captured(capture: Capture, output: Output) -> str:
    variables = capture.environment()
    names = ", ".join(f"{name}={value}" for name, value in variables.items() if name.endswith("_BASE_URL"))
    how = f"it ended: {output['ended']}, exit code {output['exit_code']}"
    where = f"as seen from outside of the sandbox: {names}; the keys are in OPENAI_API_KEY and ANTHROPIC_API_KEY"
    said = [f"the command made no model call that could be served ({how})."]
    said.append(f"Point the agent at the address and the key in its environment ({where}).")
    if refusals := capture.refusals():
        said.append(f"Refused were: {'; '.join(refusals)}.")
    tail = output["output"].strip()[-TAIL:]
    said.append(f"It printed, at the end:\n{tail}" if tail else "It printed nothing.")
    return " ".join(said)
