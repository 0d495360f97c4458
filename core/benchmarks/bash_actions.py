"""A bash action through the full path (tool -> socket -> sandbox) against tmux and against a bare pipe to bash.

*Bare pipe*: one ``bash`` on two pipes, no sandbox, blocking reads: the least that can be done; and the same in an event
loop. *tmux*: a session driven as OpenHands drives it, the prompt as sentinel: send-keys, capture-pane every 0.5 s until
the prompt is back, then C-l, 0.1 s, clear-history. *tmux, no pauses* is the same without the waiting: what tmux itself
costs. ``true`` and ``echo`` are part of bash, ``/bin/true`` is a process to start. Then 10 MB of output, and the action
server's frames over a Unix socket pair against TCP loopback.

    python bash_actions.py [--rounds 10] [--runtime bubblewrap]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import uvloop
from figures import Contender, alternate, figure, machine, show, show_rows, skipped
from transports import transports

from prorl.api import Sandbox, SandboxSpec, ToolContext
from prorl.plugins import discover
from prorl.sandbox.manager import SandboxManager
from prorl.tools.execute import ExecuteBash

MEGABYTES = 10
PRINT = f"yes 0123456789012345678901234567890123456789012345678 | head -c {MEGABYTES}000000"
POLL_S = 0.5
CLEAR_S = 0.1
BARE = "bare pipe"
Run = Callable[[str], Awaitable[int]]


class Pipe:
    """One bash; a random word printed after each command ends its output, and carries the exit status."""

    def __init__(self) -> None:
        argv = ["bash", "--noprofile", "--norc"]
        self._bash = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._in, self._out = self._bash.stdin.fileno(), self._bash.stdout.fileno()

    async def run(self, command: str) -> int:
        """Returns how many bytes came back."""
        fence = secrets.token_hex(8).encode()
        os.write(self._in, command.encode() + b"\necho " + fence + b"$?\n")
        output = bytearray()
        while fence not in output[-64:]:
            output += os.read(self._out, 1 << 16)
        return len(output)

    def close(self) -> None:
        self._bash.kill()
        self._bash.communicate()


class AsyncPipe:
    """The same, driven by the event loop, as a server has to: it may not block."""

    @classmethod
    async def open(cls) -> AsyncPipe:
        pipe = cls()
        pipe._bash = await asyncio.create_subprocess_exec(
            "bash", "--noprofile", "--norc", stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=1 << 24
        )
        return pipe

    async def run(self, command: str) -> int:
        fence = secrets.token_hex(8).encode()
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.write(command.encode() + b"\necho " + fence + b"$?\n")
        return len(await self._bash.stdout.readuntil(fence)) + len(await self._bash.stdout.readline())

    async def close(self) -> None:
        self._bash.kill()
        await self._bash.communicate()


class Tmux:
    """A session of a tmux server of its own. The prompt is the sentinel; it carries a number and the exit status."""

    def __init__(self, *, poll_s: float, clear_s: float) -> None:
        self._poll_s = poll_s
        self._clear_s = clear_s
        self._socket = f"prorl-bench-{secrets.token_hex(4)}"
        self._prompt = re.compile(rf"^###{self._socket} (\d+) \d+###$", re.MULTILINE)
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", "1000", "-y", "1000", "cat")
        self._tmux("set-option", "-g", "history-limit", "10000")
        self._tmux("new-window", "bash --noprofile --norc")  # the limit holds for windows made after it
        self._tmux("send-keys", f"PS1='###{self._socket} \\# $?###\n'; PS2=''", "Enter")
        self._number = 0

    async def ready(self) -> None:
        await asyncio.sleep(0.5)
        await self._cleared()
        self._number = self._last_number(self._capture())

    async def run(self, command: str) -> int:
        self._tmux("send-keys", command, "Enter")
        while (number := self._last_number(shown := self._capture())) <= self._number:  # noqa: ASYNC110 - the usual way
            await asyncio.sleep(self._poll_s)
        self._number = number
        await self._cleared()
        return len(shown)

    def _capture(self) -> str:
        return self._tmux("capture-pane", "-J", "-p", "-S", "-")

    def _last_number(self, shown: str) -> int:
        return max((int(found) for found in self._prompt.findall(shown)), default=0)

    async def _cleared(self) -> None:
        self._tmux("send-keys", "C-l")
        await asyncio.sleep(self._clear_s)
        self._tmux("clear-history")

    def _tmux(self, *arguments: str) -> str:
        argv = ["tmux", "-L", self._socket, *arguments]
        return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout

    def close(self) -> None:
        self._tmux("kill-server")


class FullPath:
    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._tool = ExecuteBash()
        self._context = ToolContext(sandbox=sandbox, timeout=60)

    async def run(self, command: str) -> int:
        seen = await self._tool.call({"command": command}, self._context)
        assert not seen.is_error, seen.text
        return len(seen.text)

    async def stream(self, command: str) -> int:
        """All of the output, to the host, as it comes."""
        received = 0

        async def take(data: bytes) -> None:
            nonlocal received
            received += len(data)

        await self._sandbox.act("bash", {"command": command}, timeout=60, on_output=take)
        return received


@contextlib.asynccontextmanager
async def sandbox_of(runtime: str | None) -> AsyncIterator[Sandbox]:
    manager = SandboxManager(discover().runtimes, runtime)
    try:
        yield await manager.start(SandboxSpec())
    finally:
        await manager.close()


async def main(rounds: int, runtime: str | None) -> None:
    print(f"bash actions: {machine()}")
    async with contextlib.AsyncExitStack() as stack:
        sandbox = await stack.enter_async_context(sandbox_of(runtime))
        full, pipe, async_pipe = FullPath(sandbox), Pipe(), await AsyncPipe.open()
        stack.callback(pipe.close)
        stack.push_async_callback(async_pipe.close)
        ways: dict[str, tuple[Run, int]] = {f"full path ({sandbox.runtime})": (full.run, 100)}
        ways |= {BARE: (pipe.run, 100), "bare pipe, in an event loop": (async_pipe.run, 100)}
        if shutil.which("tmux"):
            usual = stack.enter_context(contextlib.closing(Tmux(poll_s=POLL_S, clear_s=CLEAR_S)))
            eager = stack.enter_context(contextlib.closing(Tmux(poll_s=0, clear_s=0)))
            await asyncio.gather(usual.ready(), eager.ready())
            ways |= {"tmux, as OpenHands polls": (usual.run, 2), "tmux, no pauses": (eager.run, 5)}
        else:
            skipped("tmux", "it is not on PATH")
        for command in ("true", "echo hello", "/bin/true"):
            chosen: dict[str, tuple[Contender, int]] = {n: (partial(r, command), c) for n, (r, c) in ways.items()}
            show(f"`{command}`", await alternate(chosen, rounds), BARE)

        floods = {f"{name}, streamed": full.stream for name in list(ways)[:1]} | {n: r for n, (r, _) in ways.items()}
        rows = [("", "s", "MB/s", "bytes that came back")]
        for name, run in floods.items():
            began = time.perf_counter()
            size = await run(PRINT)
            seconds = time.perf_counter() - began
            rows.append((name, figure(seconds), figure(MEGABYTES / seconds), f"{size:,}"))
        show_rows(f"{MEGABYTES} MB of output", rows)
    await transports(rounds)
    print(f"\n{machine()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--runtime", default=None)
    asked = parser.parse_args()
    uvloop.run(main(asked.rounds, asked.runtime))
