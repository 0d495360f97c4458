"""``prorl demo``: the main job end to end, in a minute, on a laptop.

Several policies go through one server, one after the other. Between them the LLM servers are cleared, as a trainer does
it between two versions of its weights.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.markup import escape

from prorl.api.errors import ConfigError, ProrlError
from prorl.api.records import DemoRecord
from prorl.cli.console import check_writable, err, load_registry, out, print_json
from prorl.cli.demo_policies import SCRIPTED, SMALL, Policy, policies_of
from prorl.cli.demo_view import show_next_steps, show_results, show_trajectory
from prorl.client import RolloutClient
from prorl.plugins import Registry
from prorl.server.serve import RunningServer
from prorl.server.settings import parse_settings
from prorl.wire import Budgets, JobRequest, RolloutResult
from prorl.wire.wording import counted

BUDGETS = Budgets(init_s=60, run_s=60, eval_s=30)


@dataclass(frozen=True)
class Played:
    policy: Policy
    row: dict[str, Any]
    result: RolloutResult


@click.command("demo")
@click.option("--domain", default=None, help="Show only this domain's demo. [default: all that are installed]")
@click.option("--runtime", default=None, help="Sandbox runtime by name, `local` for none at all. [default: the best]")
@click.option("--save", type=click.Path(dir_okay=False, path_type=Path), help="Write the results there, as JSON lines.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON, and nothing else.")
def command(domain: str | None, runtime: str | None, save: Path | None, as_json: bool) -> int:
    """A real model, server and sandbox at work, in a minute.

    The exit status is 1 if a rollout of the scripted policy did not complete.
    """
    if save is not None:
        check_writable(save, "--save")
    registry = load_registry()
    began = time.monotonic()
    with ExitStack() as stack:
        console = err() if as_json else out()
        demos = _ready(_chosen(registry, domain), console.print)
        policies = policies_of(stack, demos, console.print)
        settings = {"server": {"port": 0}, "sandbox": {} if runtime is None else {"runtime": runtime}}
        server = stack.enter_context(RunningServer(parse_settings(settings), registry))
        by = escape(runtime) if runtime is not None else "the best runtime here (prorl doctor)"
        console.print(f"server     {server.url}, sandboxes by {by}")
        with console.status("rolling out ...") if console.is_terminal else nullcontext():
            played = asyncio.run(_play(server.url, policies))
        if save is not None:
            save.write_bytes(b"".join(msgspec.json.encode(each.result) + b"\n" for each in played))
        if as_json:
            print_json([each.result for each in played])
        else:
            show_results(console, [(each.policy.name, each.row, each.result) for each in played])
            for policy in policies:
                for demo in policy.demos if policy.name != SMALL else ():
                    console.print(f"{policy.name}: {escape(demo.summary)}")
            for policy in policies:
                for first in [each.result for each in played if each.policy is policy][:1]:
                    show_trajectory(console, policy.name, first.trajectory, first.reward, policy.spell)
            show_next_steps(console, time.monotonic() - began)
    failed = sum(each.result.status != "completed" for each in played if each.policy.name == SCRIPTED)
    if failed:
        err().print(f"{counted(failed, 'rollout')} of the scripted policy did not complete: see prorl doctor")
    return 1 if failed else 0


def _chosen(registry: Registry, domain: str | None) -> list[DemoRecord]:
    demos = [demo for demo in registry.demos.values() if domain in (None, demo.name, demo.domain)]
    if not demos:
        known = ", ".join(registry.demos) or "none: pip install prorl-math"
        raise ConfigError(f"no demo{f' for {domain!r}' if domain else ''}; installed: {known}")
    return demos


def _ready(demos: Sequence[DemoRecord], say: Callable[[str], None]) -> list[DemoRecord]:
    """Those that can be shown; the others say why not."""
    ready, reasons = [], []
    for demo in demos:
        try:
            if demo.ready is not None:
                say(f"{demo.name:<10} gets what its tasks need (longer the first time)")
                demo.ready()
        except ProrlError as error:
            reasons.append(f"{demo.name}: {error}")
            say(f"{demo.name:<10} left out: {escape(str(error))}")
        else:
            ready.append(demo)
    if not ready:
        raise ConfigError(f"no demo can be shown here: {'; '.join(reasons)}")
    return ready


async def _play(url: str, policies: Sequence[Policy]) -> list[Played]:
    played: list[Played] = []
    async with RolloutClient(url) as server:
        for policy in policies:
            await server.clear_llm_server()
            await server.add_llm_server(policy.backend)
            work = [(row, _request(demo, row, policy)) for demo in policy.demos for row in demo.rows[: policy.rows]]
            results = await asyncio.gather(*(server.process(request) for _, request in work))
            played += [Played(policy, row, result) for (row, _), result in zip(work, results, strict=True)]
    return played


def _request(demo: DemoRecord, row: dict[str, Any], policy: Policy) -> JobRequest:
    return JobRequest(
        domain=demo.domain,
        instance=row,
        sampling_params=policy.sampling,
        settings=policy.settings,
        budgets=BUDGETS,
    )
