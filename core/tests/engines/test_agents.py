"""Compaction and sub-agents with a real engine: every segment holds what that engine sampled, where it sampled it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from prorl.agent import AgentSettings, ToolAgentHandler, run_agent
from prorl.api import HandlerRecord, Job, Message
from prorl.testing.engines import LlamaEngine
from prorl.testing.lab import Lab
from prorl.wire.results import RolloutResult
from prorl.wire.soundness import check_result

BRIEF = AgentSettings(max_turns=3, max_reply_tokens=24, cut_reply="tell", min_reply_tokens=16)


class Talks(ToolAgentHandler):
    """Talks until its turns are used up; two others talk beside it."""

    def messages(self, job: Job) -> list[Message]:
        return [Message(role="user", content="Tell me a long story about the sea, in many chapters.")]

    async def run(self, job: Job) -> dict[str, Any]:
        output, *others = await asyncio.gather(
            super().run(job),
            *(
                run_agent(job, name, [Message(role="user", content=f"Tell of a {name}.")], settings=BRIEF)
                for name in ("whale", "ship")
            ),
        )
        return {**output, "others": [other["turns"] for other in others]}

    async def grade(self, job: Job) -> dict[str, Any]:
        return {"reward": 1.0, "metrics": {"others": job.run_output["others"]}}


def test_segments_of_a_real_engine(llama: LlamaEngine) -> None:
    record = HandlerRecord(name="talks", factory=Talks, summary="for this test", settings=AgentSettings)
    settings = {
        "max_turns": 14,
        "max_reply_tokens": 60,
        "min_reply_tokens": 16,
        "cut_reply": "tell",
        "reminder": "Go on.",
        "context": "compact",
        "max_compactions": 8,
    }
    with Lab([], handlers=[record]) as lab:
        lab.client.clear_llm_server()
        lab.client.add_llm_server(llama.url)
        for seed in range(8):  # a model may fall silent before its context is full
            sampling = {"temperature": 1.0, "seed": seed}
            result = lab.rollout({}, domain="talks", settings=settings, sampling_params=sampling)
            check(result, llama.url)
            if result.metrics["compactions"]:
                return
    pytest.fail("no rollout filled its context")


def check(result: RolloutResult, url: str) -> None:
    assert result.error is None
    assert all(0 < turns <= 3 for turns in result.metrics["others"])
    segments = result.trajectory.segments
    assert {segment.agent for segment in segments} == {"", "whale", "ship"}
    assert sum(segment.origin == "compaction" for segment in segments) == result.metrics["compactions"]
    assert all(len(segment.tokens) <= 512 for segment in segments)
    assert result.trajectory.trainable
    assert check_result(result) == []
    assert {turn.backend for turn in result.trajectory.turns if turn.role == "assistant"} == {url}
