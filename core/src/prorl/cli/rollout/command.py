"""The command's options, and the order of things: check the rows, open the file, skip what is done, run, sum up."""

from __future__ import annotations

import asyncio
import secrets
from itertools import chain
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.markup import escape

from prorl.api.errors import ConfigError
from prorl.cli.console import err, out, print_json
from prorl.cli.options import assignments
from prorl.cli.rollout.results import Asked, ResultFile
from prorl.cli.rollout.rows import key_of, of_sample, read_rows, requests, sample_of
from prorl.cli.rollout.runner import run_jobs
from prorl.cli.rollout.summary import Summary
from prorl.client import DEFAULT_URL, RolloutClient
from prorl.wire import Budgets, JobRequest, SamplingParams
from prorl.wire.wording import complaint, counted

_SAMPLING = SamplingParams()
_INTERRUPTED, _TERMINATED = 130, 143


@click.command("rollout", context_settings={"show_default": True})
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--server", metavar="URL", default=DEFAULT_URL, envvar="PRORL_SERVER", show_envvar=True, help="The server."
)
@click.option(
    "--out",
    "out_path",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="Results, one JSON line each. Rows already in it are skipped.",
)
@click.option("-n", "--samples", type=click.IntRange(min=1), default=1, help="Rollouts per row.")
@click.option("--domain", help="Which handler; default: each row's data_source.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the first rows.")
@click.option("--concurrency", type=click.IntRange(1, 10_000), default=64, help="Rollouts in flight at once.")
@click.option("--temperature", type=float, default=_SAMPLING.temperature, help="Of sampling.")
@click.option("--top-p", type=float, default=_SAMPLING.top_p, help="Of sampling.")
@click.option("--top-k", type=int, default=_SAMPLING.top_k, help="Of sampling; 0: no cut.")
@click.option("--min-p", type=float, default=_SAMPLING.min_p, help="Of sampling.")
@click.option("--max-tokens", type=int, default=_SAMPLING.max_tokens, help="Of one model reply.")
@click.option("--seed", type=int, help="Of the first sample; the others count up from it.")
@click.option("--run-s", type=float, help="Seconds of work for the agent; default: the server's.")
@click.option("--priority", type=int, default=0, help="Higher is served first.")
@click.option(
    "--set", "sets", metavar="NAME=VALUE", multiple=True, help="A setting of the handler (TOML value); repeatable."
)
@click.option("--run-id", help="First part of the job ids. Give a killed run's again to attach to its jobs.")
@click.option("--give-up-s", type=float, default=120.0, help="How long an unreachable server is waited for.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def command(
    *,
    file: Path,
    server: str,
    out_path: Path,
    samples: int,
    domain: str | None,
    limit: int | None,
    concurrency: int,
    temperature: float,
    top_p: float,
    top_k: int,
    min_p: float,
    max_tokens: int,
    seed: int | None,
    run_s: float | None,
    priority: int,
    sets: tuple[str, ...],
    run_id: str | None,
    give_up_s: float,
    as_json: bool,
) -> int:
    """Roll out every row of FILE (JSON lines) on a server, and write the scored results to OUT.

    Stop it whenever you like: the same command again goes on where it stopped. A rollout that fails is a result (remove
    its line from OUT to run it again); the exit status is 1 only if the server would not take a row.

    A line of OUT is the rollout's result, with two more fields: "row" is where it comes from ({"line": 3, "sample":
    0}: the third line of FILE, the first of its rollouts), "asked" the options it was run with. Lines come in the order
    in which rollouts end.
    """
    template = _checked(
        {
            "instance": {},
            "domain": domain,
            "sampling_params": {
                "temperature": temperature,
                "top_p": top_p,
                "top_k": top_k,
                "min_p": min_p,
                "max_tokens": max_tokens,
                "seed": seed,
            },
            "budgets": Budgets(run_s=run_s),
            "priority": priority,
            "settings": assignments(sets),
            "job_id": run_id or f"r{secrets.token_hex(4)}",
        }
    )
    run = template.job_id or ""
    if "." in run:
        raise ConfigError(f"--run-id {run!r} must not contain a dot: it separates the parts of a job id")
    client = RolloutClient(server, concurrency=concurrency, give_up_s=give_up_s)
    rows = read_rows(file, domain=domain, limit=limit)
    summary = Summary()
    with ResultFile(out_path) as results:
        wanted = {f"{row.key}.{sample}" for row in rows for sample in range(samples)}
        options = [Asked.of(of_sample(template, sample)) for sample in range(samples)]
        done: set[str] = set()
        differ: list[list[str]] = []
        for result in results.earlier():
            key = key_of(result.job_id)
            if key in wanted and key not in done:
                done.add(key)
                summary.add(result, fresh=False)
                if result.asked is not None and (names := options[sample_of(key)].differences(result.asked)):
                    differ.append(names)
        console, shown = err(), escape(str(out_path))
        total = len(wanted) - len(done)
        to_do = f"{counted(len(rows), 'row')} x {samples}: {counted(total, 'rollout')} to do"
        console.print(f"{to_do}, {len(done)} already in {shown}")
        if differ:
            console.print(
                f"warning: {counted(len(differ), 'rollout')} in {shown} kept as run with another "
                f"{escape(', '.join(dict.fromkeys(chain(*differ))))}: give another --out to run everything anew"
            )
        if failed := summary.statuses["failed"]:
            console.print(
                f"warning: {counted(failed, 'rollout')} in {shown} failed, and kept as results: to run them again "
                "remove their lines, or give another --out"
            )
        if total:
            jobs = requests(rows, template, run=run, samples=samples, done=done)
            workers = min(concurrency, total)
            try:
                asyncio.run(run_jobs(client, jobs, results, summary, console, total=total, workers=workers))
            except (KeyboardInterrupt, asyncio.CancelledError) as stopped:
                console.print(
                    f"interrupted: {summary.results} of {counted(len(wanted), 'result')} kept in {shown}; "
                    "the same command goes on"
                )
                return _INTERRUPTED if isinstance(stopped, KeyboardInterrupt) else _TERMINATED
    if as_json:
        print_json(summary.as_dict())
    else:
        summary.show(out())
    return 1 if summary.refused else 0


_FLAGS = {"job_id": "--run-id", "domain": "--domain", "priority": "--priority", "budgets.run_s": "--run-s"} | {
    f"sampling_params.{name}": f"--{name.replace('_', '-')}"
    for name in ("temperature", "top_p", "top_k", "min_p", "max_tokens", "seed")
}


def _checked(request: dict[str, Any]) -> JobRequest:
    try:
        return msgspec.convert(msgspec.to_builtins(request), JobRequest)
    except msgspec.ValidationError as error:
        said = complaint(error, JobRequest)
        raise ConfigError(f"{_FLAGS.get(said.place, said.place)}: {said.what}") from error
