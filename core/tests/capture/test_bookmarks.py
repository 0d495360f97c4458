"""What the proxy builds on: a chat is forked at a point of a segment that it has left since."""

from __future__ import annotations

from typing import Any

from prorl.api import AgentHandler, HandlerRecord, Job, Message
from prorl.testing.lab import Lab


def user(text: str) -> Message:
    return Message(role="user", content=text)


class Wanderer(AgentHandler):
    async def init(self, job: Job) -> Any:
        return None, {}, {}

    async def run(self, job: Job) -> dict[str, Any]:
        chat = job.services.chat()
        assert await chat.measure([user("Begin.")]) == await chat.measure([user("Begin.")])
        await chat.open([user("Begin.")])
        assert chat.tokens == await chat.measure([user("Begin.")])
        await chat.reply()
        mark, length = chat.bookmark(), chat.tokens
        await chat.observe([user("Go on.")])
        await chat.reply()
        await chat.restart([user("In short.")], origin="compaction")
        await chat.reply()
        twin = chat.fork(at=mark)
        assert (twin.tokens, [message.role for message in twin.messages]) == (length, ["user", "assistant"])
        await twin.observe([user("Another way.")])
        await twin.reply()
        return {"length": length}

    async def eval(self, job: Job) -> dict[str, Any]:
        return {"reward": 1.0, "metrics": dict(job.run_output)}


def test_a_bookmark_outlives_its_segment(exact):
    record = HandlerRecord(name="wanderer", factory=Wanderer, summary="goes back")
    with Lab(lambda request: f"Reply {request.call}.", handlers=[record]) as lab:
        result = lab.rollout({}, domain="wanderer")
    assert result.error is None, result.error
    segments = result.trajectory.segments
    assert [(segment.origin, segment.parent) for segment in segments] == [
        ("open", None),
        ("compaction", 0),
        ("branch", 0),
    ]
    assert segments[2].shared == result.metrics["length"]
    exact(lab, result)
