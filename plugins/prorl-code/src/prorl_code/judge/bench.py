"""One program's runs in sandboxes, as a stream: sandboxes come up when they are needed and go when they are spent.

A sandbox is used again only as long as the runner in it says that the last run left nothing behind. A runner that is
lost (the program killed or stopped it) has its run tried once more, alone in a fresh sandbox; lost again, and a program
that does nothing decides: if it runs, the loss was the program's own doing, and if not, the judge is at fault.
"""

from __future__ import annotations

import asyncio
import importlib.resources
import secrets
import shlex
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Self

import msgspec

from prorl.api import GraderFault, Sandbox, SandboxFault
from prorl_code.judge.program import Program, Ran, Report, Run, RunLimits, packed, request, unpacked

Open = Callable[[], Awaitable[Sandbox]]
FOLDER = ".judge"  # below the sandbox's working directory
INSIDE = ("__init__", "confine", "remains", "runner")
BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); from inside.runner import main; main(sys.argv[1], int(sys.argv[2]))"
)
PART = 600_000  # bytes of a file written or read by one action
MAX_REQUEST = 8 << 20
MAX_RUNS = 64
START_S = 60.0  # seconds for the runner itself to start, on a machine with other things to do
ACTION_S = 60.0
LINE_LIMIT = 1 << 20
CONTROL = Program(files={"solution.py": b"print(1)\n"}, command=("python3", "-B", "-s", "solution.py"))
_report = msgspec.json.Decoder(Report)


class LostError(Exception):
    """The runner was ended, or could not be heard, before it was done."""


class Bench:
    """``open_sandbox`` starts one within the limits. ``stop``: runs end with the first one that a limit ended.

    An async context manager; whatever still runs at its end is ended with its sandbox.
    """

    def __init__(self, open_sandbox: Open, program: Program, limits: RunLimits, *, stop: bool = False) -> None:
        self._open_sandbox = open_sandbox
        self._program = program
        self._limits = limits
        self._stop = stop
        inside = importlib.resources.files("prorl_code").joinpath("inside")
        self._runner = {f"inside/{name}.py": inside.joinpath(f"{name}.py").read_bytes() for name in INSIDE}
        self._sandbox: Sandbox | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._drop()

    async def one(self, run: Run) -> Ran:
        """How a single run ended."""
        async with aclosing(self.results((run,))) as results:
            async for ran in results:
                return ran
        raise AssertionError("a run has a result, or raises")

    async def results(self, runs: Sequence[Run]) -> AsyncGenerator[Ran, None]:
        """How each run ended, in order. Raises ``GraderFault`` (``sandbox``) where no sandbox works."""
        done, alone = 0, False
        while done < len(runs):
            batch = runs[done : done + 1] if alone else _batch(runs, done)
            sandbox = await self._open()
            before, left, lost = done, None, False
            try:
                async with aclosing(self._call(sandbox, batch)) as calls:
                    async for ran in calls:
                        done, left = done + 1, ran.left
                        yield ran
                        if self._stop and ran.ended != "exit":
                            return
            except LostError:
                lost = True
            if lost or left or done == before:
                await self._drop()
            if lost and alone:
                await self._control()
                done += 1
                yield Ran(ended="lost")
            alone = lost and not alone

    async def _control(self) -> None:
        """Raises ``GraderFault`` if not even a program that does nothing can be run."""
        async with Bench(self._open_sandbox, CONTROL, self._limits) as bench:
            try:
                async with aclosing(bench._call(await bench._open(), (Run(),))) as calls:
                    fine = [(ran.ended, ran.code, ran.stdout) == ("exit", 0, b"1\n") async for ran in calls]
            except LostError:
                fine = []
        if fine != [True]:
            raise GraderFault("the judge's sandboxes lose even a program that does nothing", code="sandbox")

    async def _open(self) -> Sandbox:
        if self._sandbox is None:
            try:
                self._sandbox = await self._open_sandbox()
            except SandboxFault as fault:
                raise GraderFault(f"no sandbox for the judge: {fault}", code="sandbox") from fault
        return self._sandbox

    async def _drop(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox:
            await sandbox.stop(grace=0)

    async def _call(self, sandbox: Sandbox, runs: Sequence[Run]) -> AsyncGenerator[Ran, None]:
        """One call of the runner, which may end before it was through with all runs. Raises ``LostError``."""
        reading = _Reading(secrets.token_hex(16))
        acting = asyncio.create_task(self._act(sandbox, tuple(runs), reading), name="judge-runner")
        try:
            while not (report := await reading.next(self._patience())).done:
                if report.parts:
                    await acting
                    report = await _read_parts(sandbox, report.parts)
                yield report.ran()
        except (SandboxFault, ValueError, TimeoutError) as error:
            raise LostError(f"the runner was lost: {error}") from error
        finally:
            acting.cancel()
            await asyncio.wait([acting])
            if not acting.cancelled():
                acting.exception()  # the reader has heard of it already

    def _patience(self) -> float:
        return self._limits.wall_s + START_S

    async def _act(self, sandbox: Sandbox, runs: tuple[Run, ...], reading: _Reading) -> None:
        asked = request(reading.word, self._program, runs, self._limits, stop=self._stop)
        parts = [asked[start : start + PART] for start in range(0, len(asked), PART)]
        files = {f"in-{number}": part for number, part in enumerate(parts)}
        folder = f"{sandbox.workdir}/{FOLDER}"
        try:
            for name, data in {**files, **self._runner}.items():
                wanted = {"path": f"{folder}/{name}", "data": packed(data)}
                if (await sandbox.act("write", wanted, timeout=ACTION_S)).outcome != "ok":
                    return
            command = f"python3 -I -S -B -c {shlex.quote(BOOT)} {shlex.quote(folder)} {len(parts)}"
            timeout = len(runs) * self._patience()
            await sandbox.act("bash", {"command": command}, timeout=timeout, on_output=reading.feed)
        finally:
            reading.end()


class _Reading:
    """Lines behind the secret word, out of whatever else is written to the runner's terminal."""

    def __init__(self, word: str) -> None:
        self.word = word
        self._mark = word.encode() + b" "
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._line = b""

    async def feed(self, data: bytes) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        if len(self._line) > LINE_LIMIT:
            self._line = b""
        for line in lines:
            _, mark, text = line.partition(self._mark)
            if mark:
                self._lines.put_nowait(text)

    def end(self) -> None:
        self._lines.put_nowait(None)

    async def next(self, timeout: float) -> Report:
        """Raises ``TimeoutError``, ``ValueError`` for what is no report, and ``LostError`` at the end of all lines."""
        async with asyncio.timeout(timeout):
            line = await self._lines.get()
        if line is None:
            raise LostError("the runner has ended")
        return _report.decode(line)


async def _read_parts(sandbox: Sandbox, parts: int) -> Report:
    text = b""
    for number in range(parts):
        wanted = {"path": f"{sandbox.workdir}/{FOLDER}/out-{number}", "limit": PART}
        data = (await sandbox.act("read", wanted, timeout=ACTION_S)).data.get("data")
        text += unpacked(data if isinstance(data, str) else "no file")
    return _report.decode(text)


def _batch(runs: Sequence[Run], start: int) -> Sequence[Run]:
    """As many as one request may hold, one at least."""
    size, end = 0, start
    while end < len(runs) and end - start < MAX_RUNS:
        size += len(runs[end].stdin) + sum(map(len, runs[end].files.values()))
        if end > start and size > MAX_REQUEST:
            break
        end += 1
    return runs[start:end]
