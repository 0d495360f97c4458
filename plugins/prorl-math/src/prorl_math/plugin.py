"""What this distribution offers to the server."""

from __future__ import annotations

from prorl.api import DemoRecord, HandlerRecord, hookimpl
from prorl_math import demo
from prorl_math.handler import MathHandler
from prorl_math.settings import MathSettings

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
            summary="mathematics with IPython, graded by math-verify in a killable process",
            domains=DOMAINS,
            prefixes=PREFIXES,
            settings=MathSettings,
        )
    ]


@hookimpl
def prorl_demos() -> list[DemoRecord]:
    return [demo.record()]
