"""A stranger's program, made from the page alone, agrees with ours."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from prorl.api import AgentHandler, HandlerRecord, Message
from prorl.testing.lab import Lab
from prorl.wire import RolloutResult
from prorl.wire.soundness import check_result

PAGE = Path(__file__).parents[2] / "docs" / "certificate.md"
KEY = b"0123456789abcdef0123456789abcdef"
CALL = (
    '<tool_call>\n{"name": "look", "arguments": {"é": 1.5, "b": [null, true, -3, {"z": "", "a": 1e300}]}}\n</tool_call>'
)


class Wander(AgentHandler):
    """Several segments, one of them without turns; tool calls; an error."""

    async def init(self, job):
        return None, {}, {}

    async def run(self, job):
        chat = job.services.chat()
        await chat.open([Message(role="user", content="Grüße, 世界")])
        await chat.reply()
        await chat.observe([Message(role="tool", name="look", content="nothing")], ms=2.5)
        await chat.reply()
        await chat.fork(3).reply()
        chat.fork(2)
        await chat.restart([Message(role="user", content="go on")], origin="compaction", note="too long")
        await chat.reply()
        critic = job.services.chat("critic")
        await critic.open([Message(role="user", content="well?")])
        await critic.reply()
        return {}

    async def eval(self, job):
        if job.instance.get("fail"):
            raise ValueError("no grade")
        return {"reward": 0.25}


@pytest.fixture(scope="module")
def lines(tmp_path_factory) -> list[bytes]:
    key = tmp_path_factory.mktemp("key") / "key"
    key.write_bytes(KEY)
    record = HandlerRecord(name="wander", factory=Wander, summary="for this page")
    settings = {"server": {"certificate_key_file": str(key)}}
    with Lab([CALL, "I see.", "No.", "Yes."], handlers=[record], settings=settings) as lab:
        sampling = {"temperature": 0.5, "top_k": 40}
        results = [
            lab.rollout({"id": 7}, domain="wander", group_id="g"),
            lab.rollout({"fail": True}, domain="wander", sampling_params=sampling),
        ]
    assert [len(result.trajectory.segments) for result in results] == [5, 5], results[0].error
    assert results[0].trajectory.turns[1].tool_calls
    assert results[1].error is not None
    assert [check_result(result, key=KEY) for result in results] == [[], []]
    return [msgspec.json.encode(result) + b"\n" for result in results]


@pytest.fixture
def stranger(tmp_path):
    (block,) = re.findall(r'^```python title="check_chain.py"\n(.*?)^```$', PAGE.read_text(), re.MULTILINE | re.DOTALL)
    program, key = tmp_path / "check_chain.py", tmp_path / "key"
    program.write_text(block)
    key.write_bytes(KEY + b"\n")

    def run(lines: list[bytes], *, signed: bool = True) -> list[str]:
        file = tmp_path / "results.jsonl"
        file.write_bytes(b"".join(lines))
        arguments = [sys.executable, "-I", program, file, *([key] if signed else [])]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return [line.split(maxsplit=1)[1] for line in done.stdout.splitlines()]

    return run


def test_it_finds_what_the_server_made_good(lines, stranger) -> None:
    assert stranger(lines) == ["good", "good"]


def test_it_finds_forgeries(lines, stranger) -> None:
    result = msgspec.json.decode(lines[0], type=RolloutResult)
    result.trajectory.turns[1].tool_calls[0].arguments["b"][2] = -4
    assert stranger([msgspec.json.encode(result) + b"\n"], signed=False) == ["NOT GOOD"]
    result = msgspec.json.decode(lines[1], type=RolloutResult)
    result.reward = 1.0
    forged = [msgspec.json.encode(result) + b"\n"]
    assert (stranger(forged, signed=False), stranger(forged)) == (["good"], ["NOT GOOD"])
