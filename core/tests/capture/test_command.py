"""An agent's command in a sandbox without network, from the first call to the grade."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl.agent import CommandAgentHandler, CommandSettings
from prorl.agent.running import Printed
from prorl.api import HandlerRecord, Job
from prorl.client import BlockingClient
from prorl.testing.lab import Lab
from prorl.testing.scripted import ScriptedReply
from prorl.wire import JobRequest

AGENT = """
import json, os, sys, urllib.request

def ask(messages):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "any", "messages": messages}).encode(),
        {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"},
    )
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]

messages = [{"role": "user", "content": os.environ["QUESTION"]}]
for _ in range(int(os.environ.get("TURNS", "1"))):
    said = ask(messages)
    print("policy:", said["content"], flush=True)
    messages += [said, {"role": "user", "content": "Are you sure?"}]
"""


class Scripted(CommandAgentHandler):
    """Runs ``instance["command"]``."""

    def command(self, job: Job) -> Any:
        return job.instance.get("command", "python3 agent.py")

    def files(self, job: Job) -> dict[str, str]:
        return {"agent.py": AGENT}

    def env(self, job: Job) -> dict[str, str]:
        return {"QUESTION": "What is the capital of France?", **job.instance.get("env", {})}

    async def grade(self, job: Job) -> dict[str, Any]:
        return {"reward": float("Paris" in job.run_output["output"])}


class Kept(Scripted):
    """Grades in the sandbox: whatever was left running would show."""

    grading_needs_runtime: ClassVar[bool] = True

    async def grade(self, job: Job) -> dict[str, Any]:
        look = "for p in /proc/[0-9]*; do tr '\\\\0' ' ' < $p/cmdline; echo; done"
        seen = await job.runtime.act("bash", {"command": look}, timeout=60)
        return {"reward": float("sleep 98765" not in seen.output), "metrics": {"seen": seen.output}}


@pytest.fixture
def run():
    def rollout(policy: Any, *, runtime: str = "bubblewrap", handler: Any = Scripted, **more: Any) -> Any:
        record = HandlerRecord(name="scripted", factory=handler, summary="runs a command", settings=CommandSettings)
        settings = {"runtime": runtime, **more.pop("settings", {})}
        with Lab(policy, handlers=[record]) as lab:
            result = lab.rollout(more.pop("instance", {}), domain="scripted", settings=settings, **more)
            return result, lab

    return rollout


@pytest.mark.parametrize("runtime", ["bubblewrap", "local"])
def test_a_command_is_captured_and_graded(run, exact, runtime):
    result, lab = run(["It is Paris.", "Quite sure."], runtime=runtime, instance={"env": {"TURNS": "2"}})
    assert result.error is None, result.error
    assert result.reward == 1.0
    assert result.artifacts["agent_output"].split("\n")[:2] == ["policy: It is Paris.", "policy: Quite sure."]
    assert (result.metrics["ended"], result.metrics["exit_code"]) == ("exit", 0)
    assert result.metrics["capture"]["calls"] == 2
    assert len(result.trajectory.segments) == 1
    exact(lab, result)


def test_nothing_captured_says_where_to_look(run):
    result, _ = run(["never asked"], instance={"command": "echo I need no model; exit 3"})
    assert (result.status, result.error.kind, result.error.code) == ("failed", "task", "nothing_captured")
    assert result.mask_sample
    for words in ("OPENAI_BASE_URL=http://127.0.0.1:", "/proxy/", "exit code 3", "I need no model"):
        assert words in result.error.message
    assert result.artifacts["agent_output"].strip() == "I need no model"


def test_a_wrong_key_is_named(run):
    result, _ = run(["never asked"], instance={"command": "OPENAI_API_KEY=sk-mine python3 agent.py"})
    assert result.error.code == "nothing_captured"
    assert "401 this is not the API key of this job" in result.error.message


def test_nothing_is_left_for_the_grader_to_meet(run):
    leave = "python3 agent.py; (setsid sleep 98765 &) ; nohup sleep 98765 & disown; "
    result, _ = run(["Paris"], handler=Kept, instance={"command": leave})
    assert result.error is None, result.error
    assert result.reward == 1.0, result.metrics["seen"]
    killed = leave + "for p in /proc/[0-9]*; do grep -q relay.py $p/cmdline && kill -9 ${p#/proc/}; done; sleep 98765"
    result, _ = run(["Paris"], handler=Kept, instance={"command": killed})
    assert result.error is None, result.error
    assert result.metrics["exit_code"] == 137
    assert result.reward == 1.0, result.metrics["seen"]


def test_a_command_that_takes_too_long_is_graded_on_what_it_did(run):
    result, _ = run(["Paris"], instance={"command": "python3 agent.py; sleep 98765"}, settings={"timeout_s": 12.0})
    assert result.error is None, result.error
    assert (result.metrics["ended"], result.metrics["exit_code"], result.reward) == ("timeout", None, 1.0)


def test_calls_are_limited_and_the_command_is_ended(run):
    persistent = "while true; do python3 agent.py 2>&1 | tail -1; done"
    result, lab = run(["Paris"] * 9, instance={"command": persistent}, settings={"max_calls": 2, "grace_s": 1.0})
    assert result.error is None, result.error
    assert (result.metrics["ended"], result.reward) == ("max_calls", 1.0)
    assert result.metrics["capture"]["calls"] == 2
    assert len(lab.engine.requests) == 2


def test_a_flood_of_output_is_capped(run):
    flood = "python3 agent.py; head -c 30000000 /dev/zero | tr '\\\\0' x; echo the end"
    result, _ = run(["Paris"], instance={"command": flood}, settings={"output_chars": 1000})
    assert result.error is None, result.error
    kept = result.artifacts["agent_output"]
    assert len(kept) < 2000
    assert "policy: Paris" in kept
    assert "the end" in kept


def test_a_failing_engine_is_not_the_policys_fault(run):
    """The harness shrugs and exits 0; the sample is masked all the same."""
    impossible = ScriptedReply(text="Paris", logprobs=[0.5] * 9)
    result, _ = run(lambda request: impossible, instance={"command": "python3 agent.py; true"})
    assert result.error.kind == "model", result.error
    assert result.mask_sample
    assert "urllib" in result.artifacts["agent_output"]


def test_a_prompt_that_never_fits_is_the_tasks_fault(run):
    result, _ = run(["never"], instance={"env": {"QUESTION": "word " * 5000}})
    assert (result.error.kind, result.error.code, result.mask_sample) == ("task", "prompt_too_long", True)


def test_a_budget_that_runs_out_is_graded_on_what_was_done(run):
    result, _ = run(["Paris"], instance={"command": "python3 agent.py; sleep 98765"}, budgets={"run_s": 12.0})
    assert (result.status, result.error.code) == ("timed_out", "run_budget")
    assert result.metrics["ended"] == "timeout"
    assert (result.reward, result.mask_sample) == (1.0, False)
    assert sum(result.trajectory.segments[0].loss_mask) > 0


def test_a_command_that_is_not_there(run):
    result, _ = run([], instance={"command": ["no-such-agent", "--now"]})
    assert result.error.code == "nothing_captured"
    assert "no-such-agent: No such file" in result.error.message
    assert "exit code 127" in result.error.message


def test_only_the_jobs_own_door_can_be_reached(run):
    probe = (
        "python3 agent.py; python3 - <<'EOF'\n"
        "import json, os, urllib.request, urllib.error\n"
        "origin = os.environ['OPENAI_BASE_URL'].split('/proxy/')[0]\n"
        "for path in ('/status', '/jobs', '/cancel', '/proxy/other/v1/models'):\n"
        "    try:\n"
        "        print(path, urllib.request.urlopen(origin + path).status)\n"
        "    except urllib.error.HTTPError as error:\n"
        "        print(path, error.code)\n"
        "EOF\n"
        "cat /proc/net/dev"
    )
    result, _ = run(["Paris"], instance={"command": probe})
    assert result.error is None, result.error
    printed = result.artifacts["agent_output"]
    for path in ("/status", "/jobs", "/cancel", "/proxy/other/v1/models"):
        assert f"{path} 404" in printed
    devices = [line.split(":")[0].strip() for line in printed.splitlines() if ":" in line and "bytes" not in line]
    assert not [name for name in devices if name.startswith(("eth", "wl", "en"))], printed


@given(st.lists(st.binary(max_size=50), max_size=20), st.integers(2, 60))
def test_what_is_kept_of_the_output_is_its_beginning_and_end(chunks: list[bytes], limit: int) -> None:
    printed, whole = Printed(limit), b"".join(chunks)

    async def play() -> None:
        for chunk in chunks:
            await printed.add(chunk)

    asyncio.run(play())
    half = limit // 2
    if len(whole) <= 2 * half:
        assert printed.text() == whole.decode("utf-8", "replace").replace("\r\n", "\n")
    else:
        note = f"\n[... {len(whole) - 2 * half} bytes left out ...]\n".encode()
        kept = whole[:half] + note + whole[-half:]
        assert printed.text() == kept.decode("utf-8", "replace").replace("\r\n", "\n")


def test_a_job_that_is_cancelled_amid_a_call_leaves_nothing():
    """Its id holds all that an id may, too."""
    record = HandlerRecord(name="scripted", factory=Scripted, summary="runs a command", settings=CommandSettings)
    job_id = "step-1:p@0+x"
    mine = f"prorl-door-{os.getpid()}-*"
    with Lab(["Paris"], handlers=[record]) as lab:
        settings = {"runtime": "bubblewrap"}
        done = lab.rollout({}, domain="scripted", settings=settings, job_id=f"{job_id}.first")
        assert done.error is None, done.error
        lab.engine.hold()
        ended: list[Any] = []
        body = {"instance": {}, "domain": "scripted", "settings": settings, "job_id": job_id}

        def rollout() -> None:
            with BlockingClient(lab.url) as client:
                ended.append(client.process(msgspec.convert(body, JobRequest)))

        thread = threading.Thread(target=rollout)
        thread.start()
        deadline = time.monotonic() + 60
        while not lab.engine.in_flight and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(list(Path(tempfile.gettempdir()).glob(mine))) == 1
        assert httpx.post(f"{lab.url}/cancel", json={"job_id": job_id}).json()["cancelled"] == [job_id]
        thread.join()
        assert (ended[0].status, ended[0].mask_sample) == ("cancelled", True)
        assert not list(Path(tempfile.gettempdir()).glob(mine))
        while lab.engine.in_flight and time.monotonic() < deadline:
            time.sleep(0.01)
        assert lab.engine.aborted == 1
