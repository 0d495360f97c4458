"""Running an agent's command in a sandbox: what it finds there, when it ends, what is kept of its output."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec

from prorl.agent import relay
from prorl.api.capture import Capture
from prorl.api.errors import SandboxFault
from prorl.api.job import Job
from prorl.api.names import RuntimeName
from prorl.api.sandbox import ActionResult, Bind, Sandbox, SandboxSpec
from prorl.wire.jobs import Seconds

Count = Annotated[int, msgspec.Meta(ge=1)]
CommandEnded = Literal["exit", "timeout", "max_calls", "cancelled", "fault"]
AT = "/run/prorl-agent"  # the door's folder, as a sandbox of its own sees it
RELAY, JOB = "relay.py", "job.json"
PATIENCE = 60.0
NO_LIMIT = 604_800.0
# A process that was killed is there for a moment yet: wait until there is none but this shell and the action server.
END_ALL = "kill -s KILL -- -1; for ((i = 0; i < 500; i++)); do kill -s 0 -- -1 2>/dev/null || break; sleep 0.01; done"


class CommandSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of every :class:`CommandAgentHandler`; a domain inherits from it to add its own.

    ``max_calls``: model calls per rollout; further ones are refused with a 403, and the command is ended
    ``grace_s`` later.
    ``timeout_s``: the longest the command may take, by the clock on the wall; ``None``: the job's budget for RUN, which
    does not run while the LLM servers are paused for new weights. What it has done by then is graded.
    ``output_chars``: what is kept of its output, from its beginning and its end.
    ``runtime``, ``sandbox``: as in :class:`~prorl.agent.AgentSettings`.
    """

    max_calls: Count = 64
    grace_s: Seconds = 10.0
    timeout_s: Seconds | None = None
    output_chars: Annotated[int, msgspec.Meta(ge=1_000, le=100_000)] = 30_000
    runtime: RuntimeName | None = None
    sandbox: SandboxSpec = SandboxSpec()


class CommandOutput(TypedDict):
    """What a command leaves in ``job.run_output``. ``exit_code`` is ``None`` for one that was ended; ``output`` holds
    what it printed, ``stdout`` and ``stderr`` in one."""

    ended: CommandEnded
    exit_code: int | None
    output: str
    calls: int


class Printed:
    """The beginning and the end of what was printed, in about ``limit`` bytes, also of a command that was ended."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._left_out = 0

    async def add(self, data: bytes) -> None:
        taken = self._half - len(self._head)
        self._head += data[:taken]
        self._tail += data[taken:]
        if (over := len(self._tail) - self._half) > 0:
            del self._tail[:over]
            self._left_out += over

    def text(self) -> str:
        note = b"\n[... %d bytes left out ...]\n" % self._left_out if self._left_out else b""
        return (self._head + note + self._tail).decode("utf-8", "replace").replace("\r\n", "\n")


async def start(job: Job, settings: CommandSettings, folder: Path) -> tuple[Sandbox, str]:
    """The sandbox, and where the door's folder is in it."""
    spec = settings.sandbox
    shown = msgspec.structs.replace(spec, binds=(*spec.binds, Bind(source=str(folder), target=AT)))
    try:
        return await job.services.sandbox(shown, runtime=settings.runtime), AT
    except SandboxFault as fault:
        if fault.code != "unsupported":
            raise
    # A runtime without binds isolates nothing either: the folder is where it is.
    return await job.services.sandbox(spec, runtime=settings.runtime), str(folder)


def furnish(folder: Path, about: dict[str, Any]) -> None:
    shutil.copyfile(relay.__file__, folder / RELAY)
    (folder / JOB).write_text(json.dumps(about), encoding="utf-8")
    for name in (RELAY, JOB):
        (folder / name).chmod(0o644)


async def place(sandbox: Sandbox, files: Mapping[str, str | bytes | Path]) -> None:
    with tempfile.TemporaryDirectory(prefix="prorl-files-") as folder:
        for remote, content in files.items():
            local = content if isinstance(content, Path) else Path(folder, "file")
            if not isinstance(content, Path):
                data = content.encode() if isinstance(content, str) else content
                await asyncio.to_thread(local.write_bytes, data)
            await sandbox.upload(local, remote)


async def until_over(
    sandbox: Sandbox, command: str, settings: CommandSettings, capture: Capture, printed: Printed
) -> tuple[ActionResult, CommandEnded]:
    """Run the command until it ends, or has to: out of time, or out of model calls."""
    request = {"command": command, "output_chars": 0}
    running = asyncio.create_task(
        sandbox.act("bash", request, timeout=settings.timeout_s or NO_LIMIT, on_output=printed.add),
        name="agent command",
    )
    exhausted = asyncio.create_task(capture.exhausted())
    try:
        await asyncio.wait({running, exhausted}, return_when=asyncio.FIRST_COMPLETED)
        ended: CommandEnded = "exit"
        if not running.done():
            await asyncio.wait({running}, timeout=settings.grace_s)
            ended = "max_calls"
        if not running.done():
            running.cancel()
            await asyncio.wait({running})
            return ActionResult(outcome="cancelled"), ended
        result = running.result()
    finally:
        running.cancel()
        exhausted.cancel()
    return result, "timeout" if result.outcome == "timeout" else ended


async def end_all(sandbox: Sandbox) -> None:
    """The relay ends what the command has started, unless the command has ended the relay. Where the sandbox has
    processes of its own, nothing but its action server is left after this."""
    if sandbox.runtime != "local":
        await sandbox.act("bash", {"command": END_ALL}, timeout=PATIENCE)
