"""``prorl serve``: the settings file, the flags over it, and then the server.

A flag stands for one field of the settings, and takes its help text and default from there. Whatever has no flag of its
own is reached with ``--set table.field=value``.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from prorl.api.errors import ConfigError
from prorl.cli.console import load_registry, version
from prorl.cli.options import Flag, assignments, settings_flags
from prorl.pipeline.settings import BudgetSettings, PipelineSettings
from prorl.plugins import Registry
from prorl.plugins.errors import complain
from prorl.server import serve
from prorl.server.settings import ServerSettings, check_settings, load_settings
from prorl.wire import BackendSpec

log = logging.getLogger("prorl.cli")

_FILE = Path("prorl.toml")
_FLAGS = (
    Flag("--host", ServerSettings, "server.host"),
    Flag("--port", ServerSettings, "server.port"),
    Flag("--name", ServerSettings, "server.name"),
    Flag("--init-workers", PipelineSettings, "pipeline.init_workers"),
    Flag("--run-workers", PipelineSettings, "pipeline.run_workers"),
    Flag("--eval-workers", PipelineSettings, "pipeline.eval_workers"),
    Flag("--max-jobs", PipelineSettings, "pipeline.max_jobs"),
    Flag("--run-s", BudgetSettings, "pipeline.budgets.run_s"),
    Flag("--total-s", BudgetSettings, "pipeline.budgets.total_s"),
)


@click.command("serve")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"Settings. [default: {_FILE} in this folder, if there is one]",
)
@settings_flags(_FLAGS)
@click.option("--llm-server", "llm_servers", metavar="URL", multiple=True, help="Register at start; repeatable.")
@click.option("--set", "sets", metavar="TABLE.FIELD=VALUE", multiple=True, help="Any other setting; repeatable.")
@click.option("--strict-plugins", is_flag=True, help="Refuse to start when a plugin cannot be used.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Of the log on stderr.",
)
def command(
    *,
    config: Path | None,
    llm_servers: tuple[str, ...],
    sets: tuple[str, ...],
    strict_plugins: bool,
    log_level: str,
    **flags: Any,
) -> None:
    """Run the rollout server until SIGINT or SIGTERM.

    Works as it is on a laptop: it listens on this machine only, and takes the best sandbox that works.
    """
    given = [
        f"{flag.path}={msgspec.json.encode(flags[flag.key]).decode()}" for flag in _FLAGS if flags[flag.key] is not None
    ]
    path = config or (_FILE if _FILE.exists() else None)
    said_by = {flag.path: flag.name for flag in _FLAGS if flags[flag.key] is not None}
    said_by |= {name: f"--set {name}" for name in (text.partition("=")[0].strip() for text in sets)}
    settings = load_settings(path, overrides=assignments((*sets, *given)), said_by=said_by)
    settings = msgspec.structs.replace(settings, backends=(*settings.backends, *map(_backend, llm_servers)))
    _log_to_stderr(log_level.upper())
    registry = load_registry(strict=strict_plugins)
    for report in registry.failed:
        log.warning("plugin %s", complain(report))
    check_settings(
        settings, registry, where=str(path or "settings")
    )  # here, because only here is the file's name known
    serve.run(settings, registry, on_listening=partial(_tell, registry))


def _tell(registry: Registry, url: str) -> None:
    click.echo(f"prorl {version()} listens on {url} and serves {', '.join(registry.handlers) or 'no domain yet'}")


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if level != "DEBUG":  # what these say at level INFO is one line per request, or about themselves
        for name in ("uvicorn", "httpx", "httpcore"):
            logging.getLogger(name).setLevel(logging.WARNING)


def _backend(url: str) -> BackendSpec:
    try:
        return msgspec.convert({"url": url}, BackendSpec)
    except msgspec.ValidationError as error:
        raise ConfigError(f"--llm-server {url!r} is not a URL like http://host:port") from error
