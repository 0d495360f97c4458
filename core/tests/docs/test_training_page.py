"""The page on the trainer's side: its code runs, its tables are complete."""

import re
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import msgspec

from prorl.agent import AgentSettings, ToolAgentHandler
from prorl.api import HandlerRecord, Job, Message
from prorl.client import CollectorSettings, samples
from prorl.testing.lab import Lab

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text()


class Coin(ToolAgentHandler):
    """Every second rollout of a prompt is right."""

    def messages(self, job: Job) -> list[Message]:
        return [Message(role="user", content=job.instance["problem"])]

    async def grade(self, job: Job) -> dict[str, Any]:
        return {"reward": float(job.id.rpartition("-")[2].partition(".")[0] in ("0", "2"))}


def test_the_step_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r'^```python title="step.py"\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL)
    coin = HandlerRecord(name="math", factory=Coin, summary="for this page", settings=AgentSettings)
    with Lab(["It is 42."] * 20, handlers=[coin]) as lab:
        script = tmp_path / "step.py"
        script.write_text(code.replace("http://127.0.0.1:8089", lab.url))
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 0 ")
    assert "[1.0, 0.0, 1.0, 0.0]" in done.stdout


def test_the_tables_are_complete() -> None:
    named = set(re.findall(r"`(\w+)`", PAGE))
    known = {field.name for field in msgspec.structs.fields(CollectorSettings)} - {"cancel_s"}
    assert known <= named
    assert set(typing.get_args(samples.Reason)) <= named
