"""What this distribution offers to the server."""

from __future__ import annotations

from prorl.api import DemoRecord, HandlerRecord, SettingsRecord, hookimpl
from prorl_swe import demo
from prorl_swe.handler import SweHandler
from prorl_swe.settings import BUDGETS, SweSettings, SweTable

# `data_source` values of rows as SkyRL, rLLM and others wrap them, and the data sets' own names.
DOMAINS = ("swe-bench", "swe-gym", "r2e-gym", "swe-smith", "swe-rebench")
PREFIXES = (
    "SWE-bench/",
    "SWE-Gym/",
    "R2E-Gym/",
    "nebius/SWE-rebench",
    "NovaSky-AI/SkyRL-v0",
    "princeton-nlp/SWE-bench",
)


@hookimpl
def prorl_agent_handlers() -> list[HandlerRecord]:
    return [
        HandlerRecord(
            name="swe",
            factory=SweHandler,
            summary="real repositories with a bug, repaired with bash and a file editor, graded by hidden tests",
            domains=DOMAINS,
            prefixes=PREFIXES,
            settings=SweSettings,
            budgets=BUDGETS,
            needs=_needs,
        )
    ]


def _needs() -> None:
    from prorl_swe.repository.git import find_git  # noqa: PLC0415 - only where it is asked

    find_git()


@hookimpl
def prorl_settings() -> list[SettingsRecord]:
    return [SettingsRecord(name="swe", type=SweTable, summary="where repositories may be, and the cache of them")]


@hookimpl
def prorl_demos() -> list[DemoRecord]:
    return [demo.record()]
