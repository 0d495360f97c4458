"""A rollout with a tool through the whole service, with a server of each dialect behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prorl.agent import AgentSettings, ToolAgentHandler
from prorl.api import HandlerRecord, Job, Message
from prorl.testing.bytebpe import write_tokenizer
from prorl.testing.lab import Lab
from prorl.testing.scripted import ScriptedEngine
from prorl.testing.scripted.chat import ChatSpeech, NemoRlSpeech
from prorl.testing.scripted.llamacpp import LlamaCppSpeech
from prorl.testing.scripted.sglang import SglangSpeech
from prorl.testing.scripted.vllm import VllmSpeech
from prorl.wire import BackendSpec
from prorl.wire.soundness import check_result

CALL = '<tool_call>\n{"name": "think", "arguments": {"thought": "six times seven"}}\n</tool_call>'
SPEECHES = {
    "vllm": VllmSpeech,
    "sglang": SglangSpeech,
    "llamacpp": LlamaCppSpeech,
    "nemo-rl": NemoRlSpeech,
    "openai-chat": ChatSpeech,
}


class Sums(ToolAgentHandler):
    tools = ("think",)

    def messages(self, job: Job) -> list[Message]:
        return [Message(role="user", content=job.instance["problem"])]

    async def grade(self, job: Job) -> dict[str, Any]:
        return {"reward": float(job.instance["answer"] in job.run_output["answer"])}


@pytest.mark.parametrize(("dialect", "tells"), [*((name, True) for name in SPEECHES), ("openai-chat", False)])
def test_a_rollout(tmp_path: Path, dialect: str, tells: bool) -> None:
    write_tokenizer(tmp_path)
    left = [CALL, "It is 42."]
    speech = SPEECHES[dialect]() if tells else ChatSpeech(tells="nothing")
    handler = HandlerRecord(name="sums", factory=Sums, summary="sums", settings=AgentSettings)
    with ScriptedEngine(lambda _: left.pop(0), speech=speech) as engine, Lab([], handlers=[handler]) as lab:
        lab.client.clear_llm_server()
        status = lab.client.add_llm_server(BackendSpec(url=engine.url, tokenizer=str(tmp_path)))
        assert status.dialect == dialect
        result = lab.rollout({"problem": "6 * 7?", "answer": "42"}, domain="sums")
    assert check_result(result) == []
    assert (result.error, result.reward, result.mask_sample) == (None, 1.0, False)
    assert (result.metrics["turns"], result.metrics["tool_calls"], result.metrics["tool_errors"]) == (2, 1, 0)
    trajectory = result.trajectory
    assert trajectory.trainable is tells
    replies = [turn for turn in trajectory.turns if turn.role == "assistant"]
    assert [turn.text for turn in replies] == [CALL, "It is 42."]
    asked = [request.prompt_ids for request in engine.requests]
    if tells:
        assert [trajectory.input_ids(turn) for turn in replies] == asked
    else:
        assert [segment.tokens for segment in trajectory.segments] == [[]]
