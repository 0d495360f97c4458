"""What this distribution offers to the server."""

from __future__ import annotations

from prorl.api import DemoRecord, HandlerRecord, hookimpl
from prorl_code import demo
from prorl_code.handler import CodeHandler
from prorl_code.settings import CodeSettings

# `data_source` values in public data sets: Eurus-2-RL's parts, verl's and rLLM's preprocessing, the sets' own names.
DOMAINS = ("apps", "codecontests", "codeforces", "livecodebench", "primeintellect", "taco")
PREFIXES = ("BAAI/TACO", "codeparrot/apps", "livecodebench/", "open-r1/codeforces", "PRIME-RL/Eurus-2-RL-Data")


@hookimpl
def prorl_agent_handlers() -> list[HandlerRecord]:
    return [
        HandlerRecord(
            name="code",
            factory=CodeHandler,
            summary="programming problems with a file editor, bash and IPython, judged on tests in sandboxes",
            domains=DOMAINS,
            prefixes=PREFIXES,
            settings=CodeSettings,
        )
    ]


@hookimpl
def prorl_demos() -> list[DemoRecord]:
    return [demo.record()]
