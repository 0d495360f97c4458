"""A task of two turns for a model that knows nothing: what is tested here is everything around the words."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, ClassVar

from prorl.api import AgentHandler, HandlerRecord, Job, Message, SandboxFault

PROMPT, RESPONSE = 96, 48  # the sizes that verl is configured with


class Relay(AgentHandler):
    """Row fields: ``question``; ``turns`` (2); ``broken``: so many rollouts of a group, the first, meet a broken
    sandbox; ``slow``: seconds before the first word; ``equal``: all rewards are the same; ``differ``: they are 1 and 0
    by turns, and not what the words happen to be; ``forks``: a second segment.
    """

    groups: ClassVar[Counter[str]] = Counter()

    async def init(self, job: Job) -> Any:
        return None, {}, {}

    async def run(self, job: Job) -> dict[str, Any]:
        row = job.instance
        group = job.request.group_id or ""
        Relay.groups[group] += 1
        number = Relay.groups[group]
        if number <= row.get("broken", 0):
            raise SandboxFault("the sandbox is gone", code="gone")
        await asyncio.sleep(row.get("slow", 0.0))
        chat = job.services.chat()
        await chat.open([Message(role="user", content=row["question"])])
        said = []
        for turn in range(row.get("turns", 2)):
            message = Message(role="user", content=f"And what is turn {turn}?")
            if turn and row.get("forks"):
                await chat.restart([message], origin="compaction")
            elif turn:
                await chat.observe([message])
            said.append((await chat.reply(max_tokens=8)).text)
        return {"said": said, "number": number}

    async def eval(self, job: Job) -> dict[str, Any]:
        output = job.run_output
        odd = (output["number"] if job.instance.get("differ") else sum(map(len, output["said"]))) % 2
        return {"reward": 0.5 if job.instance.get("equal") else float(odd), "resolved": bool(odd)}


RECORD = HandlerRecord(name="relay", factory=Relay, summary="talks for a while", prefixes=("relay",))
