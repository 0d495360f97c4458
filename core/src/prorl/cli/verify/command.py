"""The command's options, and the order of things: hashes and structure first, then texts and engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from prorl.api.errors import ConfigError
from prorl.cli.console import err, load_registry, out, print_json
from prorl.cli.verify.reading import Item, read_results
from prorl.cli.verify.report import Report
from prorl.wire import RolloutResult
from prorl.wire.certificate import read_key
from prorl.wire.soundness import Finding, check_result, check_structure

Check = Callable[[RolloutResult], Awaitable[list[Finding]]]
_AT_ONCE = 8  # an engine scores several prompts in little more time than one


@click.command("verify", context_settings={"show_default": True})
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--key",
    "key_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The server's certificate_key_file: signatures are checked, and must be there.",
)
@click.option("--tokenizer", metavar="DIR", help="Folder or hub name: tokens are decoded and compared with the texts.")
@click.option("--engine", metavar="URL", help="An LLM server that scores the tokens again.")
@click.option("--dialect", help="Of the engine; default: it is asked.")
@click.option("--model", help="Of the engine; default: its first.")
@click.option("--version", help="What the engine's weights are called in FILE; default: as the engine calls them.")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0.0),
    default=0.01,
    help="Largest gap of a logprob that is taken for rounding (float32: 1e-4; bfloat16: 0.1 and more).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(
    *,
    file: Path,
    key_file: Path | None,
    tokenizer: str | None,
    engine: str | None,
    dialect: str | None,
    model: str | None,
    version: str | None,
    tolerance: float,
    as_json: bool,
) -> int:
    """Is every token of FILE the sampled one?

    FILE holds rollout results: JSON lines (what `prorl rollout` writes), one JSON document, or .msgpack. Offline, the
    certificate's hashes and everything that must hold in a trajectory are checked; --engine has a model score the
    recorded tokens once more and compares logprobs. Turns and segments count from 0, lines from 1.

    The exit status is 0 if all is good, 1 if something is not or --engine could compare nothing, 2 if FILE or a part of
    it holds no results.
    """
    report = Report()
    key = _key(key_file)
    for item in _with_progress(file, "hashes"):
        report.add(item, [] if item.result is None else check_result(item.result, key=key))
    try:
        if (tokenizer or engine) and report.results:
            asyncio.run(
                _ask(
                    file,
                    report,
                    tokenizer=tokenizer,
                    engine=engine,
                    dialect=dialect,
                    model=model,
                    version=version,
                    tolerance=tolerance,
                )
            )
    except BaseException:
        report.unproved = "what --tokenizer or --engine was to show was not looked at to the end"
        raise
    finally:  # an engine that is gone takes nothing away from what was found without it
        if as_json:
            print_json(report.as_dict())
        else:
            report.show(out())
    return report.status


def _key(file: Path | None) -> bytes | None:
    try:
        return None if file is None else read_key(file)
    except ValueError as error:
        raise ConfigError(f"--key: {error}") from error


async def _ask(
    file: Path,
    report: Report,
    *,
    tokenizer: str | None,
    engine: str | None,
    dialect: str | None,
    model: str | None,
    version: str | None,
    tolerance: float,
) -> None:
    """What takes a tokenizer or an engine. These parts of the package are imported only here."""
    from prorl.cli.verify.rescoring import Rescoring, connect  # noqa: PLC0415
    from prorl.cli.verify.texts import Texts  # noqa: PLC0415
    from prorl.llm.tokenizers.local import load_tokenizer  # noqa: PLC0415

    async with AsyncExitStack() as stack:
        checks: dict[str, Texts | Rescoring] = {}
        if tokenizer is not None:
            checks["texts"] = Texts(await load_tokenizer(tokenizer))
        if engine is not None:
            scores, info = await stack.enter_async_context(
                connect(engine, load_registry().dialects, dialect=dialect, model=model)
            )
            name = await _version(scores.weights, version, list(report.policy_versions))
            checks["engine"] = Rescoring(scores, version=name, tolerance=tolerance, max_context=info.max_context)
        for name, check in checks.items():
            await _run(check.check, file, report, name)
            report.sections[name] = check.as_dict()
        # A file can name any version it likes, and leave out the tokenizer's name.
        sampled, scoring, texts = sum(report.policy_versions.values()), checks.get("engine"), checks.get("texts")
        if isinstance(scoring, Rescoring) and sampled and not scoring.compared:
            report.unproved = f"the engine compared none of the {sampled} sampled tokens: it proves nothing here"
        elif isinstance(texts, Texts) and texts.not_compared and not texts.replies:
            report.unproved = "no text was compared: the engines took messages, and their texts are their own"


async def _run(check: Check, file: Path, report: Report, name: str) -> None:
    async def one(item: Item, result: RolloutResult) -> None:
        report.find(item.line, result, await check(result))

    waiting: set[asyncio.Task[None]] = set()
    for item in _with_progress(file, name):
        if item.result is None or check_structure(item.result.trajectory):
            continue  # said already, and nothing that could be compared
        waiting.add(asyncio.create_task(one(item, item.result)))
        if len(waiting) >= _AT_ONCE:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    await asyncio.gather(*waiting)


async def _version(weights: Callable[[], Awaitable[str | None]], asked: str | None, known: list[str]) -> str:
    """Which of the file's versions the engine has now. Raises ``ConfigError`` where nobody says."""
    name = asked if asked is not None else await weights()
    if name is None and len(known) == 1:
        (name,) = known
        err().print(f"the engine does not name its weights: taken for version {name}, the only one in the file")
    if name is None:
        raise ConfigError(f"the engine does not name its weights: give --version, one of {', '.join(known) or 'none'}")
    return name


def _with_progress(file: Path, what: str) -> Iterator[Item]:
    console = err()
    columns = TextColumn("{task.description}"), BarColumn(bar_width=30), TimeRemainingColumn(compact=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(what, total=file.stat().st_size)
        for item in read_results(file):
            yield item
            bar.update(task, completed=item.end)
