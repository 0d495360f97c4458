"""Keys for ``prorl demo``, and the model that learnt to look them up: half a million parameters, in ``model/``."""

from __future__ import annotations

from pathlib import Path

from prorl.api import DemoModel, DemoRecord
from prorl.wire import SamplingParams

MODEL = Path(__file__).parent / "model"
ROWS = (
    {"key": "417", "value": "CAB"},
    {"key": "286", "value": "FAD"},
    {"key": "903", "value": "HEG"},
    {"key": "550", "value": "BAC"},
)


def record() -> DemoRecord:
    return DemoRecord(
        name="lookup",
        domain="lookup",
        rows=ROWS,
        summary="four keys; it was trained by RL to look them up with a tool, and to say what it found",
        model=DemoModel(
            name="lookup-0.5m",
            gguf=MODEL / "trained.gguf",
            tokenizer=MODEL,
            summary="half a million parameters that learnt to call a tool",
            sampling=SamplingParams(max_tokens=24, seed=2),  # at temperature 1, as it was trained
            settings={"max_turns": 3},
            n_ctx=512,
        ),
    )
