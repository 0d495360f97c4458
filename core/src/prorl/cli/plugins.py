"""``prorl plugins``: every entry point, whether it works, and why not."""

from __future__ import annotations

import asyncio

import click
from rich.markup import escape

from prorl.cli.console import load_registry, out, print_json, print_table, table
from prorl.client import RolloutClient
from prorl.wire import PluginReport

_COLOURS = {"active": "green", "conflict": "yellow"}


@click.command("plugins")
@click.option("--server", metavar="URL", help="Ask a running server instead of looking at this environment.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(server: str | None, as_json: bool) -> None:
    """List installed plugins: name, distribution, state, what they offer, and the reason if they cannot be used."""
    reports = asyncio.run(_ask(server)) if server else load_registry().reports
    if as_json:
        print_json(reports)
    else:
        show(reports)


def show(reports: list[PluginReport]) -> None:
    console = out()
    listing = table("plugin", "distribution", "state", "offers")
    for report in reports:
        colour = _COLOURS.get(report.state, "red")
        offers = "; ".join(f"{_kind(hook)}: {', '.join(names)}" for hook, names in report.offers.items())
        listing.add_row(
            escape(report.name),
            escape(f"{report.distribution} {report.version}"),
            f"[{colour}]{report.state}[/]",
            escape(offers),
        )
    print_table(console, listing)
    for report in reports:
        if report.reason:
            console.print(
                f"\n[bold]{escape(report.name)}[/]: {escape(report.reason)}", soft_wrap=not console.is_terminal
            )


def _kind(hook: str) -> str:
    return hook.removeprefix("prorl_").replace("_", " ")


async def _ask(url: str) -> list[PluginReport]:
    async with RolloutClient(url) as client:
        return await client.plugins()
