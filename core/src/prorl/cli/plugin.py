"""The built-in commands, registered as any plugin's are."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from prorl.api import CommandRecord, ConfigError, hookimpl

if TYPE_CHECKING:
    import click

_SUMMARIES = (
    ("serve", "run the rollout server"),
    ("rollout", "roll out the rows of a JSONL file through a server"),
    ("verify", "check that every token of a file of results is the sampled one"),
    ("plugins", "list what is installed, and what is wrong with it"),
    ("doctor", "try what works on this machine, and say what to do about the rest"),
    ("sandbox", "run a command in a sandbox, end what killed servers left"),
    ("image", "build, list and prune the images of sandboxes"),
    ("demo", "a real model, server and sandboxes at work on every domain, in a minute"),
)


def _load(name: str) -> click.Command:
    try:
        command: click.Command = import_module(f"prorl.cli.{name}").command
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "prorl":
            raise
        raise ConfigError(f"`prorl {name}` needs {error.name}: pip install 'prorl[server]'") from error
    return command


@hookimpl
def prorl_commands() -> list[CommandRecord]:
    return [CommandRecord(name=name, load=partial(_load, name), summary=summary) for name, summary in _SUMMARIES]
