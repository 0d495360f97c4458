"""``prorl-swe cache``: what the cache of repositories holds; make room in it, or fill it before a run."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
from rich.markup import escape

from prorl.api.errors import ConfigError, Fault, ProrlError
from prorl.api.sandbox import Sandbox, SandboxSpec
from prorl.cli.app import run
from prorl.cli.console import err, load_registry, out, print_json
from prorl.cli.console import table as columns
from prorl.pipeline.tables import convert_table
from prorl.sandbox.manager import SandboxManager
from prorl.sandbox.plugin import with_settings
from prorl.server.settings import Settings, load_settings
from prorl_swe.repository.cache import RepositoryCache, default_folder
from prorl_swe.repository.store import Store, Stored
from prorl_swe.rows import Instance, read_row
from prorl_swe.settings import SweSettings, SweTable

_FILE = Path("prorl.toml")
DAY = 86_400.0


class Outcome(msgspec.Struct, kw_only=True):
    """What preparing one row came to; ``error`` when its repository could not be had."""

    instance_id: str
    seconds: float
    base: str | None = None
    error: str | None = None


@click.group("swe", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Repositories of the swe domain."""


@command.group("cache")
def cache() -> None:
    """The cache of prepared repositories and of the environments of their tests."""


_folder = click.option(
    "--folder",
    type=click.Path(file_okay=False, resolve_path=True, path_type=Path),
    help=f"The cache. [default: what the settings say in [swe] cache, else {default_folder()}]",
)
_config = click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"The server's settings. [default: {_FILE} in this folder, if there is one]",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@cache.command("list")
@_folder
@_config
@_json
def show(folder: Path | None, config: Path | None, as_json: bool) -> None:
    """What is kept, what was used last first."""
    _print(_store(folder, config).list(), as_json)


@cache.command("prune")
@click.option("--max-gb", type=click.FloatRange(min=0), help="Remove what was used longest ago until the rest fits.")
@click.option("--older-than", metavar="DAYS", type=click.FloatRange(min=0), help="Remove what was not used for DAYS.")
@_folder
@_config
@_json
def prune(
    max_gb: float | None, older_than: float | None, folder: Path | None, config: Path | None, as_json: bool
) -> None:
    """Remove what nobody uses; prints what was removed."""
    if max_gb is None and older_than is None:
        raise ConfigError("say what may go: --max-gb, --older-than, or both")
    removed = _store(folder, config).prune(
        max_bytes=None if max_gb is None else int(max_gb * 1e9),
        max_age=None if older_than is None else older_than * DAY,
    )
    _print(removed, as_json)


@cache.command("prepare")
@click.argument("rows", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--at-once", type=click.IntRange(min=1), default=4, show_default=True, help="How many rows at a time.")
@_folder
@_config
@_json
def prepare(rows: Path, at_once: int, folder: Path | None, config: Path | None, as_json: bool) -> int:
    """Have the repositories of ROWS (JSON lines) ready, so that no rollout waits for them. Exit status 1 when one
    could not be had. Images are read in sandboxes, as [sandbox] of the settings has them.
    """
    settings, table = _settings(config)
    instances = _read(rows, table.sources)
    sandboxes = settings.sandbox
    manager = SandboxManager(with_settings(load_registry().runtimes, sandboxes), sandboxes.runtime)
    outcomes = asyncio.run(_prepare(instances, at_once, manager, folder or table.cache))
    if as_json:
        print_json(outcomes)
    else:
        listing = columns("row", "seconds", "base")
        for outcome in outcomes:
            listing.add_row(escape(outcome.instance_id), f"{outcome.seconds:.1f}", escape(outcome.base or "failed"))
        out().print(listing)
        for outcome in outcomes:
            if outcome.error:
                err().print(f"{escape(outcome.instance_id)}: {escape(outcome.error)}")
    return int(any(outcome.error for outcome in outcomes))


async def _prepare(
    instances: Sequence[Instance], at_once: int, manager: SandboxManager, folder: str | Path | None
) -> list[Outcome]:
    repositories = RepositoryCache(folder, max_gb=None)
    turns = asyncio.Semaphore(at_once)

    async def start(spec: SandboxSpec) -> Sandbox:
        return await manager.start(spec)

    async def one(instance: Instance) -> Outcome:
        async with turns:
            began = time.monotonic()
            try:
                with await repositories.prepare(instance, SandboxSpec(), start=start) as lease:
                    commit, error = lease.prepared.base, None
            except Fault as fault:
                commit, error = None, str(fault)
        seconds = time.monotonic() - began
        return Outcome(instance_id=instance.instance_id, seconds=seconds, base=commit, error=error)

    try:
        return list(await asyncio.gather(*map(one, instances)))
    finally:
        await repositories.close()
        await manager.close()


def _settings(config: Path | None) -> tuple[Settings, SweTable]:
    path = config or (_FILE if _FILE.exists() else None)
    settings = load_settings(path)
    return settings, convert_table(settings.plugins.get("swe", {}), SweTable, where=f"{path}: [swe]")


def _read(rows: Path, sources: Sequence[str] | None) -> list[Instance]:
    """Raises :class:`ConfigError` with the line that is wrong."""
    settings = SweSettings()
    found = []
    for number, line in enumerate(rows.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line, type=dict)
            found.append(read_row(row, settings.format, settings.images, sources))
        except (msgspec.MsgspecError, ProrlError) as error:
            raise ConfigError(f"{rows}, line {number}: {error}") from error
    if not found:
        raise ConfigError(f"{rows} has no rows")
    return found


def _store(folder: Path | None, config: Path | None) -> Store:
    return Store(folder or Path(_settings(config)[1].cache or default_folder()))


def _print(stored: tuple[Stored, ...], as_json: bool) -> None:
    if as_json:
        print_json(stored)
        return
    listing = columns("kind", "what", "MB", "last used", "key")
    for one in stored:
        used = "in use" if one.in_use else f"{(time.time() - one.used) / DAY:.1f} days ago"
        listing.add_row(one.kind, escape(one.what), f"{one.size / 1e6:.1f}", used, one.key[:12])
    out().print(listing)


def main() -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 asked for something that cannot work."""
    sys.exit(run(sys.argv[1:], command, "prorl-swe"))
