"""The command group. Commands come from the plugins' records and are imported only when they are run.

Errors that a user can do something about are one line on stderr and exit status 2; ``--debug`` shows the traceback.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence

import click

from prorl.api.errors import ProrlError
from prorl.cli.console import load_registry, version
from prorl.client import ClientError
from prorl.plugins import Registry

INTERRUPTED = 130
_ONLY_HELP = getattr(click.exceptions, "NoArgsIsHelpError", ())  # click before 8.2 prints the help itself


class PluginGroup(click.Group):
    """A group whose commands are the registry's."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_registry(ctx).commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        record = _registry(ctx).commands.get(cmd_name)
        if record is None:
            return None
        try:
            return record.load()
        except ProrlError:
            raise
        except (Exception, SystemExit) as error:
            raise click.ClickException(
                f"the command {cmd_name!r} cannot be loaded: {type(error).__name__}: {error}; see `prorl plugins`"
            ) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, record.summary) for name, record in _registry(ctx).commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(cls=PluginGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version(), "-V", "--version", prog_name="prorl")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Rollouts of LLM agents as a service."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def run(arguments: Sequence[str], command: click.Command = cli, name: str = "prorl") -> int:
    """Run the command line (of a plugin's own program: its ``command``); returns the exit status and prints every
    error."""
    status: object
    try:
        # --debug counts wherever it stands: people add it at the end of the line that failed.
        status = command.main([each for each in arguments if each != "--debug"], prog_name=name, standalone_mode=False)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        status = INTERRUPTED
    except BrokenPipeError:  # `prorl ... | head`: nobody reads on, which is no error of ours
        sys.stderr.close()
        status = 1
    except _ONLY_HELP as error:  # a group without one of its commands
        click.echo(error.format_message())
        status = 0
    except Exception as error:
        if "--debug" in arguments:
            traceback.print_exc()
        status, message = _explain(error)
        click.echo(f"Error: {' '.join(message.split())}", err=True)
    return status if isinstance(status, int) else 0


def _explain(error: Exception) -> tuple[int, str]:
    match error:
        case click.UsageError():
            where = error.ctx.command_path if error.ctx is not None else "prorl"
            return 2, f"{error.format_message()} (see `{where} --help`)"
        case click.ClickException():
            return 2, error.format_message()
        case ProrlError() | ClientError():
            return 2, str(error)
        case OSError():  # files and networks fail for reasons that lie outside
            return 1, str(error) or type(error).__name__
        case _:
            return 1, f"{type(error).__name__}: {error} (an error of prorl: --debug shows where)"


def _registry(ctx: click.Context) -> Registry:
    root = ctx.find_root()
    if root.obj is None:
        root.obj = load_registry()
    registry: Registry = root.obj
    return registry
