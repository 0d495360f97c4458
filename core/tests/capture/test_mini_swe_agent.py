"""mini-swe-agent as it comes from the package index, on its own bash, against the proxy: unmodified, and token-exact.

``PRORL_AGENTS_PYTHON`` names an interpreter that has it (it need not be this one).
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from prorl.agent import CommandAgentHandler, CommandSettings
from prorl.api import Bind, HandlerRecord, Job
from prorl.testing.engines import LlamaEngine
from prorl.testing.lab import Lab

PYTHON = os.environ.get("PRORL_AGENTS_PYTHON") or sys.executable
MISSING = not os.environ.get("PRORL_AGENTS_PYTHON") and importlib.util.find_spec("minisweagent") is None
pytestmark = [
    pytest.mark.skipif(MISSING, reason="set PRORL_AGENTS_PYTHON to an interpreter that has mini-swe-agent"),
    pytest.mark.timeout(300),
]
QUIET = {
    "MSWEA_CONFIGURED": "true",
    "MSWEA_SILENT_STARTUP": "1",
    "MSWEA_COST_TRACKING": "ignore_errors",
    "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "2",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "COLUMNS": "200",
}
MINI = f"{PYTHON} -m minisweagent.run.mini -y --exit-immediately -m openai/policy -o mini.traj.json -t"


def bash(command: str) -> str:
    return f"Let me see.\n<tool_call>\n{json.dumps({'name': 'bash', 'arguments': {'command': command}})}\n</tool_call>"


SOLUTION = [
    bash("ls"),
    bash("echo 42 > answer.txt"),
    bash("cat answer.txt; cat missing.txt"),
    bash("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
]


class Mini(CommandAgentHandler):
    def command(self, job: Job) -> str:
        return f'{MINI} "$TASK"; cat answer.txt'

    def env(self, job: Job) -> dict[str, str]:
        return {**QUIET, "TASK": "Write 42 into answer.txt.", "MSWEA_GLOBAL_CONFIG_DIR": "/tmp/mini"}

    async def grade(self, job: Job) -> dict[str, Any]:
        return {"reward": float(job.run_output["output"].rstrip().endswith("42"))}


def prefixes() -> dict[str, Any]:
    """What a sandbox must be shown of the interpreter."""
    ask = "import sys; print(sys.prefix); print(sys.base_prefix)"
    said = subprocess.run([PYTHON, "-c", ask], capture_output=True, text=True, check=True).stdout.split()
    shown = [Bind(source=path, target=path) for path in dict.fromkeys(said) if not path.startswith("/usr")]
    return {"binds": tuple(shown), "limits": {"memory_mb": 8192}}


def spacious(lab: Lab) -> Lab:
    lab.engine.max_context = 100_000
    return lab


def test_as_a_subprocess(house, exact, tmp_path):
    with house(SOLUTION, max_context=100_000) as house, house.job(sampling_params={"max_tokens": 512}) as job:
        env = {**os.environ, **QUIET, **job.door.environment(), "MSWEA_GLOBAL_CONFIG_DIR": str(tmp_path / "mini")}
        done = subprocess.run(
            [*MINI.split(), "Write 42 into answer.txt."],
            cwd=tmp_path,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert (tmp_path / "answer.txt").read_text() == "42\n"
    trajectory = job.result.trajectory
    assert [turn.role for turn in trajectory.turns] == ["prompt", *["assistant", "tool"] * 3, "assistant"]
    assert len(trajectory.segments) == 1
    assert "No such file" in trajectory.turns[6].text
    exact(house, job.result)


def test_in_a_sandbox_without_network(exact):
    record = HandlerRecord(name="mini", factory=Mini, summary="mini-swe-agent", settings=CommandSettings)
    with spacious(Lab(SOLUTION, handlers=[record])) as lab:
        settings = {"runtime": "bubblewrap", "sandbox": prefixes()}
        result = lab.rollout({}, domain="mini", settings=settings, sampling_params={"max_tokens": 512})
    assert result.error is None, result.error
    assert result.reward == 1.0, result.artifacts["agent_output"]
    assert result.metrics["capture"]["calls"] == 4
    assert len(result.trajectory.segments) == 1
    exact(lab, result)


@pytest.mark.skipif(LlamaEngine.available() is not None, reason=str(LlamaEngine.available()))
def test_with_a_real_model(exact_segments):
    """SmolLM2 solves nothing; every token is the one it sampled all the same."""
    record = HandlerRecord(name="mini", factory=Mini, summary="mini-swe-agent", settings=CommandSettings)
    with LlamaEngine(n_ctx=4096) as engine, Lab([], handlers=[record]) as lab:
        lab.client.clear_llm_server()
        lab.client.add_llm_server(engine.url)
        settings = {"runtime": "bubblewrap", "sandbox": prefixes(), "max_calls": 4, "grace_s": 2.0}
        result = lab.rollout({}, domain="mini", settings=settings, sampling_params={"max_tokens": 48, "seed": 7})
    assert result.error is None, result.error
    assert result.metrics["capture"]["calls"] >= 1
    exact_segments(result)
