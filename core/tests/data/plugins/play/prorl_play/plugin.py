"""A domain that does what its row says, with no sandbox: for tests of what surrounds a rollout."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from prorl.api import AgentHandler, HandlerRecord, Message, hookimpl


class PlaySettings(msgspec.Struct, forbid_unknown_fields=True):
    bonus: float = 0.0


def note(log: Path, line: str) -> None:
    with log.open("a") as file:
        file.write(line + "\n")


def is_open(gate: str | None) -> bool:
    return gate is None or Path(gate).exists()


class Play(AgentHandler):
    """Row fields: ``reward``, ``reason``; ``fail``, a message; ``log``, a file: one line per run; ``gate``, a file to
    wait for; ``ask``, a question to the model."""

    async def init(self, job):
        return None, {}, {}

    async def run(self, job):
        row = job.instance
        if "log" in row:
            note(Path(row["log"]), job.id)
        if "fail" in row:
            raise ValueError(row["fail"])
        while not is_open(row.get("gate")):  # noqa: ASYNC110 - the gate is another process's to open
            await asyncio.sleep(0.02)
        if "ask" in row:
            chat = job.services.chat()
            await chat.open([Message(role="user", content=row["ask"])])
            await chat.reply()
        return {}

    async def eval(self, job):
        reward = job.instance.get("reward", 0.0) + job.settings.bonus
        return {"reward": reward, "resolved": reward >= 1.0, "reason": job.instance.get("reason")}


@hookimpl
def prorl_agent_handlers():
    return [HandlerRecord(name="play", factory=Play, summary="does what the row says", settings=PlaySettings)]
