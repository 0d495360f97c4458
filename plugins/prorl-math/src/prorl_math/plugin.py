"""What this distribution offers to the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prorl.api import CommandRecord, DemoRecord, HandlerRecord, hookimpl
from prorl_math import demo
from prorl_math.handler import MathHandler
from prorl_math.settings import MathSettings

if TYPE_CHECKING:
    import click

# `data_source` values in public data sets: verl's preprocessing, DeepScaleR and rLLM, DAPO, NuminaMath, the benchmarks.
DOMAINS = ("deepscaler", "amc", "aime", "math500", "math_dapo", "gsm8k", "minerva", "olympiad_bench")
PREFIXES = (
    "AI-MO/",
    "BytedTsinghua-SIA/",
    "DigitalLearningGmbH/MATH",
    "HuggingFaceH4/MATH-500",
    "HuggingFaceH4/aime",
    "agentica-org/DeepScaleR",
    "aime",
    "amc",
    "lighteval/MATH",
    "math_dapo",
    "numina_",
    "openai/gsm8k",
)


@hookimpl
def prorl_agent_handlers() -> list[HandlerRecord]:
    return [
        HandlerRecord(
            name="math",
            factory=MathHandler,
            summary="mathematics with IPython, graded by value in a killable process",
            domains=DOMAINS,
            prefixes=PREFIXES,
            settings=MathSettings,
        )
    ]


@hookimpl
def prorl_demos() -> list[DemoRecord]:
    return [demo.record()]


def _load_rows_command() -> click.Command:
    from prorl_math.check import command  # noqa: PLC0415 - listing the commands imports none of them

    return command


@hookimpl
def prorl_commands() -> list[CommandRecord]:
    return [
        CommandRecord(
            name="math-rows", load=_load_rows_command, summary="check a file of mathematics rows, golds included"
        )
    ]
