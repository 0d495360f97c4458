"""What this distribution offers to the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prorl.api import CommandRecord, DemoRecord, HandlerRecord, ToolRecord, hookimpl
from prorl_stem import demo
from prorl_stem.handler import StemHandler
from prorl_stem.search import Search
from prorl_stem.settings import StemSettings
from prorl_stem.web import Fetch

if TYPE_CHECKING:
    import click

# `data_source` values in public data sets.
DOMAINS = (
    "scp116k",
    "scp-116k",
    "gpqa",
    "mmlu_pro",
    "scibench",
    "ugphysics",
    "supergpqa",
    "science",
    "physics",
    "chemistry",
)
PREFIXES = (
    "EricLu/SCP-116K",
    "Idavidrein/gpqa",
    "TIGER-Lab/MMLU-Pro",
    "TIGER-Lab/WebInstruct",
    "UGPhysics/",
    "m-a-p/SuperGPQA",
    "nvidia/OpenScience",
    "xw27/scibench",
    "stem",
)


@hookimpl
def prorl_agent_handlers() -> list[HandlerRecord]:
    return [
        HandlerRecord(
            name="stem",
            factory=StemHandler,
            summary="science with search, bash and IPython, graded by units, formulas and, last, a judge",
            domains=DOMAINS,
            prefixes=PREFIXES,
            settings=StemSettings,
        )
    ]


@hookimpl
def prorl_tool_backends() -> list[ToolRecord]:
    return [
        ToolRecord(
            name=Search.name, factory=Search, summary="searches an offline index or the web", aliases=Search.aliases
        ),
        ToolRecord(name=Fetch.name, factory=Fetch, summary="reads a document or a web page", aliases=Fetch.aliases),
    ]


@hookimpl
def prorl_commands() -> list[CommandRecord]:
    return [
        CommandRecord(name="stem", load=_command, summary="draw answers out of solutions, check rows, make an index")
    ]


@hookimpl
def prorl_demos() -> list[DemoRecord]:
    return [demo.record()]


def _command() -> click.Command:
    from prorl_stem.command import command  # noqa: PLC0415 - imports wait until they are needed

    return command
