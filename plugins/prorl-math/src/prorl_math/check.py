"""``prorl math-rows FILE``: every row read, and every gold answer graded against itself, before a run is paid for."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import click

from prorl.api import GraderFault, TaskFault
from prorl_math.judge import Judge
from prorl_math.rows import numbered_rows


@click.command("math-rows")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--processes", default=2, show_default=True, type=click.IntRange(1, 256), help="Grading processes.")
@click.option("--timeout", default=10.0, show_default=True, help="Seconds for one gold answer.")
def command(file: Path, processes: int, timeout: float) -> None:
    """Check FILE (JSON lines) as mathematics: which form its rows have, and whether each gold answer can be graded.

    Prints one line for every bad row, with its line and field, and ends with 1 if there is any.
    """
    forms, faults = asyncio.run(check(file, processes=processes, timeout=timeout))
    for line, fault in sorted(faults.items()):
        click.echo(f"{file}:{line}: {fault}")
    counted = ", ".join(f"{count} {form}" for form, count in sorted(forms.items())) or "none"
    click.echo(f"rows by form: {counted}; bad: {len(faults)}")
    if faults or not forms:
        raise SystemExit(1)


async def check(file: Path, *, processes: int, timeout: float) -> tuple[Counter[str], dict[int, str]]:
    """How many rows of each form, and what is wrong in which line. Raises ``GraderFault`` if no grader starts."""
    forms: Counter[str] = Counter()
    faults: dict[int, str] = {}
    judge = Judge(processes=processes, memory_mb=2048)
    try:
        async with asyncio.TaskGroup() as tasks:
            waiting = asyncio.Semaphore(4 * processes)

            async def gold(line: int, text: str) -> None:
                async with waiting:
                    try:
                        await judge.check_gold(text, timeout)
                    except GraderFault as fault:
                        if fault.code != "bad_gold":
                            raise
                        faults[line] = str(fault)

            for line, read in numbered_rows(file):
                if isinstance(read, TaskFault):
                    faults[line] = str(read)
                    continue
                forms[read.form] += 1
                tasks.create_task(gold(line, read.gold))
    except* GraderFault as group:
        raise group.exceptions[0] from None
    finally:
        await judge.close()
    return forms, faults
