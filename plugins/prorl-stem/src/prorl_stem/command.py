"""``prorl stem``: rows made ready for runs, and the offline index."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from itertools import chain
from pathlib import Path

import click

from prorl.api import ConfigError
from prorl.grading import GraderPool
from prorl_stem.extract import Drawing, draw_rows
from prorl_stem.extract.draw import AT_ONCE, GRADER, usable
from prorl_stem.index import Index, build_index, read_documents, reference_index
from prorl_stem.llm import Llm
from prorl_stem.rows import read_rows
from prorl_stem.search.backend import Hit
from prorl_stem.search.tool import line_up
from prorl_stem.settings import LlmSettings

_file = click.Path(exists=True, dir_okay=False, path_type=Path)
_written = click.Path(dir_okay=False, path_type=Path)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
SHOWN = 20
WAYS = {"given": "given in the row", "box": "from a box", "line": "from an answer line", "llm": "by the model"}


@click.group("stem")
def command() -> None:
    """Science: draw answers out of solutions, check rows, make and try an offline index."""


@command.command("extract")
@click.argument("rows", type=_file)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="Where rows with answers go."
)
@click.option("--llm-url", help="An OpenAI-compatible URL (http://host/v1), for rows where no rule tells.")
@click.option("--llm-model", help="Its model.")
@click.option("--llm-key-env", metavar="NAME", help="The environment variable that holds its key.")
@_json
def extract(
    *, rows: Path, out: Path, llm_url: str | None, llm_model: str | None, llm_key_env: str | None, as_json: bool
) -> None:
    """Draw short answers out of the solutions of ROWS (SCP-116K: problem, matched_solution).

    Rows whose answer could not be drawn are left out of --out and listed, with their line and the reason.
    """
    if (llm_url is None) != (llm_model is None):
        raise ConfigError("--llm-url and --llm-model go together")
    settings = None
    if llm_url is not None and llm_model is not None:
        settings = LlmSettings(url=llm_url, model=llm_model, api_key_env=llm_key_env)
    drawings = asyncio.run(_extract(rows, out, settings))
    ways = Counter(drawing.way for drawing in drawings if drawing.row is not None)
    undrawn = [drawing for drawing in drawings if drawing.row is None]
    if as_json:
        report = {
            "rows": len(drawings),
            "drawn": dict(ways),
            "undrawn": [{"line": drawing.line, "reason": drawing.reason} for drawing in undrawn],
        }
        click.echo(json.dumps(report))
        return
    for way, name in WAYS.items():
        if ways[way]:
            click.echo(f"{ways[way]:7} {name}")
    click.echo(f"{len(undrawn):7} not drawn")
    for drawing in undrawn[:SHOWN]:
        click.echo(f"        line {drawing.line}: {drawing.reason}")
    if len(undrawn) > SHOWN:
        click.echo(f"        and {len(undrawn) - SHOWN} more: --json lists all")


async def _extract(rows: Path, out: Path, settings: LlmSettings | None) -> list[Drawing]:
    """Into a file beside ``out``, which takes its place in the end: ``out`` may be ``rows`` itself."""
    llm = None if settings is None else Llm(settings)
    part = out.with_name(f"{out.name}.part")
    drawings = []
    try:
        with part.open("w", encoding="utf-8") as file:
            async for drawing in draw_rows(read_rows(rows), llm=llm):
                if drawing.row is not None:
                    file.write(json.dumps(drawing.row, ensure_ascii=False) + "\n")
                drawings.append(drawing)
    finally:
        if llm is not None:
            await llm.close()
    part.replace(out)
    return drawings


@command.command("check")
@click.argument("rows", type=_file)
@_json
@click.pass_context
def check(context: click.Context, rows: Path, as_json: bool) -> None:
    """See whether every row of ROWS can be run and graded; exit status 1 when one cannot.

    A bad row is named by its line and field.
    """
    bad = asyncio.run(_check(rows))
    if as_json:
        click.echo(json.dumps([{"line": line, "reason": reason} for line, reason in bad]))
    else:
        for line, reason in bad:
            click.echo(f"{rows}: line {line}: {reason}")
        click.echo("every row is good" if not bad else f"{len(bad)} rows are bad")
    context.exit(1 if bad else 0)


async def _check(rows: Path) -> list[tuple[int, str]]:
    bad: list[tuple[int, str]] = []
    places = asyncio.Semaphore(AT_ONCE)

    async def one(line: int, row: dict[str, object]) -> None:
        async with places:
            if reason := await usable(row, graders):
                bad.append((line, reason))

    async with GraderPool(GRADER) as graders:
        await asyncio.gather(*(one(line, row) for line, row in read_rows(rows)))
    return sorted(bad)


@command.command("index")
@click.argument("sources", type=click.Path(exists=True, path_type=Path), nargs=-1, required=True)
@click.option("--out", type=_written, required=True, help="The index's file.")
@click.option("--reference", is_flag=True, help="Put the corpus that comes along into it, too.")
def index(sources: tuple[Path, ...], out: Path, reference: bool) -> None:
    """Make an offline index of SOURCES: JSONL files ({"url", "title", "text"}) and folders of text.

    Name it under [handlers.stem.search] as index = "...".
    """
    documents = chain.from_iterable(read_documents(source) for source in sources)
    if reference:
        documents = chain(documents, reference_index().documents())
    count = build_index(documents, out)
    if not count:
        out.unlink()
        raise ConfigError("there is no document in any of the sources")
    click.echo(f"{out}: {count} documents, {out.stat().st_size / 1e6:.1f} MB")


@command.command("search")
@click.argument("query")
@click.option("--index", "path", type=_file, help="An index of your own. [default: the corpus that comes along]")
@click.option("--results", default=5, show_default=True, type=click.IntRange(1, 100))
def search(query: str, path: Path | None, results: int) -> None:
    """See what an agent finds for QUERY in an offline index."""
    found = (reference_index() if path is None else Index(path)).search(query, results)
    hits = [Hit(hit.url, hit.title, hit.snippet) for hit in found]
    click.echo("\n\n".join(line_up(number, hit) for number, hit in enumerate(hits, start=1)) or "nothing found")
