"""``prorl image``: build images before a run needs them, see what is kept, make room."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Self

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from prorl.api.errors import ConfigError
from prorl.cli.console import err, out, print_json, table
from prorl.sandbox.images.builder import BuildEvent
from prorl.sandbox.images.cache import ImageCache, Stored
from prorl.sandbox.images.recipe import SCHEME, Recipe
from prorl.sandbox.images.resolve import Images
from prorl.sandbox.settings import SandboxSettings
from prorl.server.settings import load_settings

_FILE = Path("prorl.toml")
DAY = 86_400.0


@click.group("image")
def command() -> None:
    """Images of sandboxes: build them, list them, remove those that nobody used for long."""


def _settings(config: Path | None) -> SandboxSettings:
    return load_settings(config or (_FILE if _FILE.exists() else None)).sandbox


_config = click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"Settings. [default: {_FILE} in this folder, if there is one]",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@command.command("build")
@click.argument("reference")
@click.option("--var", "variables", metavar="NAME=VALUE", multiple=True, help="A variable of the template; repeatable.")
@click.option("--cache", type=click.Choice(["scratch", "versioned", "lock"]), help="When an earlier build may stand.")
@click.option("--lock", "lock", metavar="PATH", multiple=True, help="A lock file, for --cache lock; repeatable.")
@_config
def build(
    reference: str, variables: tuple[str, ...], cache: str | None, lock: tuple[str, ...], config: Path | None
) -> None:
    """Have the image REFERENCE ready; prints the path of the .sif.

    REFERENCE is what a sandbox's `image` may be: docker://debian:12, def:/path/to/x.def.j2, a .sif, a folder; or a
    template that comes with prorl, such as def:default. Lines of the build go to stderr.
    """
    wanted: Recipe | str = reference
    if variables or cache or lock:
        if not reference.startswith(SCHEME):
            raise ConfigError(f"--var, --cache and --lock are for templates: {SCHEME}/path/to/x.def.j2")
        recipe = Recipe.parse(reference)
        given = dict(map(_variable, variables))
        wanted = msgspec.structs.replace(
            recipe,
            variables=recipe.variables | given,
            cache=cache or recipe.cache,
            lock=(*recipe.lock, *(str(Path(path).absolute()) for path in lock)),
        )
    settings = _settings(config)
    images = Images(settings.images, apptainer=settings.apptainer)
    with Progress(err()) as progress:
        image = asyncio.run(images.resolve(wanted, on_event=progress.show))
    click.echo(image.path)


@command.command("list")
@_config
@_json
def show(config: Path | None, as_json: bool) -> None:
    """What is kept, what was used last first."""
    stored = _cache(config).list()
    if as_json:
        print_json(stored)
    else:
        _print(stored)


@command.command("prune")
@click.option("--max-gb", type=click.FloatRange(min=0), help="Remove what was used longest ago until the rest fits.")
@click.option("--older-than", metavar="DAYS", type=click.FloatRange(min=0), help="Remove what was not used for DAYS.")
@_config
@_json
def prune(max_gb: float | None, older_than: float | None, config: Path | None, as_json: bool) -> None:
    """Remove images, never one that is in use."""
    if max_gb is None and older_than is None:
        raise ConfigError("say what may go: --max-gb, --older-than, or both")
    removed = _cache(config).prune(
        max_bytes=None if max_gb is None else int(max_gb * 1e9),
        max_age=None if older_than is None else older_than * DAY,
    )
    if as_json:
        print_json(removed)
    else:
        _print(removed)


def _variable(text: str) -> tuple[str, str]:
    """Taken as it stands: 3.10 is no number here."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--var {text!r}: write NAME=VALUE")
    return name, value


def _cache(config: Path | None) -> ImageCache:
    return ImageCache(_settings(config).images.cache_folder())


def _print(stored: tuple[Stored, ...]) -> None:
    listing = table("image", "GB", "last used", "built from")
    for one in stored:
        source = one.built.source if one.built else "unpacked"
        used = "in use" if one.in_use else f"{(time.time() - one.used) / DAY:.1f} days ago"
        listing.add_row(escape(one.name), f"{one.size / 1e9:.2f}", used, escape(source))
    out().print(listing)


class Progress:
    """One moving line on a terminal; into a pipe or a file, every line of the build."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = console.status("") if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()

    def show(self, event: BuildEvent) -> None:
        text = escape(event.text) if event.kind == "line" else f"{event.kind} {escape(event.image)}"
        line = f"{event.elapsed:6.1f} s  {text}"
        if event.kind == "failed":  # the error itself is printed by whoever ends the command
            return
        if self._status and event.kind == "line":
            self._status.update(line)
        else:
            self._console.print(line)
