"""``prorl sandbox``: a command in a sandbox as jobs get it, and an end to what killed servers left behind."""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
from collections.abc import Awaitable, Mapping
from functools import partial
from pathlib import Path

import click
import msgspec
from rich.markup import escape

from prorl.api import ActionResult, RuntimeRecord, SandboxFault, SandboxSpec
from prorl.cli.console import err, load_registry, out, print_json, table
from prorl.sandbox.manager import SandboxManager
from prorl.sandbox.plugin import with_settings
from prorl.sandbox.settings import SandboxSettings
from prorl.server.settings import load_settings

_FILE = Path("prorl.toml")
_NEVER_S = 7 * 86_400.0
_TIMED_OUT = 124
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)

_config = click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"Settings. [default: {_FILE} in this folder, if there is one]",
)


class Swept(msgspec.Struct, kw_only=True):
    """What one runtime's sweep ended; ``error`` when it could not look."""

    runtime: str
    ended: int = 0
    error: str | None = None


@click.group("sandbox")
def command() -> None:
    """Sandboxes by hand: run a command in one, end what killed servers left."""


@command.command("run", context_settings={"allow_interspersed_args": False})
@click.option("--runtime", metavar="NAME", help="Which runtime. [default: the best that works here, see prorl doctor]")
@click.option(
    "--image", metavar="REFERENCE", help="A .sif, a folder, docker://NAME. [default: this machine's own /usr]"
)
@click.option("--network", is_flag=True, help="With the network of this machine. [default: none]")
@click.option(
    "--timeout", metavar="SECONDS", type=click.FloatRange(min=0, min_open=True), help="End it then. [default: never]"
)
@_config
@click.argument("words", metavar="CMD...", nargs=-1, required=True)
def run(
    *,
    runtime: str | None,
    image: str | None,
    network: bool,
    timeout: float | None,
    config: Path | None,
    words: tuple[str, ...],
) -> int:
    """Run CMD in a new sandbox and show what it prints.

    One word is a line for bash, several are a program and its arguments:

    \b
        prorl sandbox run -- 'ls / | wc -l'
        prorl sandbox run --image docker://debian:12 -- cat /etc/os-release

    CMD reads from /dev/null; its stdout and stderr come out together. The exit status is its own, 124 after a timeout,
    and 2 with one line on stderr when there is no such sandbox.
    """
    settings = _settings(config)
    manager = SandboxManager(with_settings(load_registry().runtimes, settings), settings.runtime)
    line = words[0] if len(words) == 1 else shlex.join(words)
    spec = SandboxSpec(image=image, network=network)
    try:
        result = asyncio.run(_until_signalled(_run(manager, spec, runtime, line, timeout or _NEVER_S)))
    except Signalled as stopped:
        raise SystemExit(128 + stopped.number) from None
    if result.outcome == "timeout":
        err().print(f"ended after {timeout:g} s")
        return _TIMED_OUT
    code = result.data.get("exit_code")
    if result.outcome != "ok" or not isinstance(code, int):
        raise SandboxFault(result.error or f"the command was {result.outcome}", code="run")
    return code


async def _run(
    manager: SandboxManager, spec: SandboxSpec, runtime: str | None, line: str, timeout: float
) -> ActionResult:
    try:
        sandbox = await manager.start(spec, runtime)
        return await sandbox.act("bash", {"command": line}, timeout=timeout, on_output=_print)
    finally:
        await manager.close()


async def _print(data: bytes) -> None:
    """Blocks while nobody reads: then the command waits too, and nothing piles up."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


class Signalled(Exception):  # noqa: N818 - not an error: somebody asked
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


async def _until_signalled(work: Awaitable[ActionResult]) -> ActionResult:
    """A runtime without isolation has to clean up by itself, so signals end the work in order. Raises ``Signalled``."""
    task = asyncio.ensure_future(work)
    received: list[int] = []

    def stop(number: int) -> None:
        received.append(number)
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, partial(stop, number))
    try:
        return await task
    except asyncio.CancelledError:
        if received:
            raise Signalled(received[0]) from None
        raise


@command.command("sweep")
@_config
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def sweep(config: Path | None, as_json: bool) -> int:
    """End what killed servers left on this machine: processes, mounts, folders, leases. Nothing of a living one.

    A server does the same when it starts. Only what belongs to the user who runs this, and, as the server's settings
    say where its sandboxes are on record, only what was started with the same settings.
    """
    records = with_settings(load_registry().runtimes, _settings(config))
    found = asyncio.run(_sweep(records))
    if as_json:
        print_json(found)
    else:
        listing = table("runtime", "ended", "why not")
        for each in found:
            listing.add_row(escape(each.runtime), "-" if each.error else str(each.ended), escape(each.error or ""))
        out().print(listing, soft_wrap=False)
    return 1 if any(each.error for each in found) else 0


async def _sweep(records: Mapping[str, RuntimeRecord]) -> list[Swept]:
    return [await _sweep_one(record) for _, record in sorted(records.items())]


async def _sweep_one(record: RuntimeRecord) -> Swept:
    """One runtime that cannot look is no reason not to ask the others."""
    try:
        return Swept(runtime=record.name, ended=await record.factory().sweep())
    except Exception as error:
        return Swept(runtime=record.name, error=f"{type(error).__name__}: {error}")


def _settings(config: Path | None) -> SandboxSettings:
    return load_settings(config or (_FILE if _FILE.exists() else None)).sandbox
