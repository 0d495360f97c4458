"""What is run, within which limits, and what came of it: the words between the judge and the runner in the sandbox."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Literal

import msgspec

from prorl.api import SandboxSpec
from prorl.api.sandbox import Limits as SandboxLimits

Ended = Literal["exit", "timeout", "memory", "output", "lost"]
ROOM_MB = 256  # for the runner and the shell, above what the program may take
FILE_MB = 1


class RunLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on one run. ``cpu_s`` and ``wall_s`` in seconds; ``output_bytes`` bounds every file that the program
    writes, its standard output among them; ``tmp_mb`` all that it keeps in files at once."""

    cpu_s: float
    wall_s: float
    memory_mb: int
    output_bytes: int
    processes: int
    tmp_mb: int

    def sandbox(self, spec: SandboxSpec) -> SandboxSpec:
        """``spec`` within these limits and without network. The runner's own files have room, too."""
        bounds = SandboxLimits(
            memory_mb=self.memory_mb + ROOM_MB,
            processes=self.processes,
            file_mb=max(FILE_MB, -(-self.output_bytes * 2 // (1 << 20))),
            tmp_mb=self.tmp_mb + 2 * (self.output_bytes >> 20) + 64,
        )
        return msgspec.structs.replace(spec, network=False, limits=bounds)


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """``files`` by name, put into a folder of the run's own; ``python3`` as a word of ``command`` is the sandbox's."""

    files: dict[str, bytes]
    command: tuple[str, ...]
    collect: tuple[str, ...] = ()


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run: what is on standard input, files of its own, named pipes in place of both by descriptor."""

    stdin: bytes = b""
    files: dict[str, bytes] = {}
    pipes: dict[str, str] | None = None


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended. ``code`` is the exit code, or minus the signal. ``stderr`` is its tail. ``value`` is what a
    called function returned, as JSON. ``left`` says why the sandbox can't be used again. All of it is the program's
    word: nothing here may be believed to be more than output.
    """

    ended: Ended
    code: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    memory_mb: float = 0.0
    stdout: bytes = b""
    stderr: bytes = b""
    value: bytes = b""
    files: dict[str, bytes | None] = {}
    left: str | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A run as the runner writes it: bytes in base64. ``parts``: the rest is in that many files. ``done``: no run, but
    the runner's last word."""

    done: bool = False
    parts: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    ended: Literal["exit", "timeout", "memory", "output"] = "exit"
    code: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    memory_mb: float = 0.0
    stdout: str = ""
    stderr: str = ""
    value: str = ""
    files: dict[str, str | None] = {}
    left: str | None = None

    def ran(self) -> Ran:
        """Raises ``ValueError`` for what is no base64."""
        names = ("ended", "code", "cpu_s", "wall_s", "memory_mb", "left")
        return Ran(
            **{name: getattr(self, name) for name in names},
            stdout=unpacked(self.stdout),
            stderr=unpacked(self.stderr),
            value=unpacked(self.value),
            files={name: None if text is None else unpacked(text) for name, text in self.files.items()},
        )


def packed(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def unpacked(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from None


def request(word: str, program: Program, runs: tuple[Run, ...], limits: RunLimits, *, stop: bool) -> bytes:
    """What the runner is asked. ``stop``: end with the first run that a limit ended."""
    message: dict[str, Any] = {
        "word": word,
        "command": program.command,
        "files": {name: packed(content) for name, content in program.files.items()},
        "limits": msgspec.to_builtins(limits),
        "stop": stop,
        "runs": [
            {
                "stdin": packed(run.stdin),
                "files": {name: packed(content) for name, content in run.files.items()},
                "collect": program.collect,
                "pipes": run.pipes,
            }
            for run in runs
        ],
    }
    return msgspec.json.encode(message)
