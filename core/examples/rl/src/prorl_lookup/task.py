"""The task: the user gives a key, the agent has to look it up in its sandbox and to say the value.

Half of the reward is for calling the tool with the right key, half for repeating what it found. A value is three
letters that only the file in the sandbox knows, so there is no other way.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from prorl.agent import ToolAgentHandler
from prorl.api import Job, Message, Observation, Sandbox, TaskFault, Tool, ToolContext
from prorl.tools.base import StructTool, sandbox_of

TABLE = "table.txt"
DIGITS, LETTERS = "0123456789", "ABCDEFGH"
OTHERS = 20  # lines of the table beside the one that is asked for


class Key(msgspec.Struct, forbid_unknown_fields=True):
    key: str


class Lookup(StructTool[Key]):
    """Reads the table that the handler placed in the sandbox. Notes for the grader which keys were asked for."""

    name = "lookup"
    description = "Look up the value of a key."
    arguments = Key
    needs_sandbox = True

    def __init__(self, asked: list[str]) -> None:
        self._asked = asked

    async def run(self, arguments: Key, context: ToolContext) -> Observation:
        key = arguments.key
        self._asked.append(key)
        if not (key.isascii() and key.isdigit()):  # from here on it can stand in a shell's command
            return Observation(text="none", is_error=True)
        command = f"sed -n 's/^{key[:20]} //p' {TABLE}"
        result = await sandbox_of(context).act("bash", {"command": command}, timeout=context.timeout)
        return Observation(text=result.output.strip() or "none")


class LookupHandler(ToolAgentHandler):
    def messages(self, job: Job) -> list[Message]:
        row = Row.of(job)
        return [Message(role="user", content=row.key)]

    def more_tools(self, job: Job) -> list[Tool]:
        return [Lookup(job.metadata.setdefault("asked", []))]

    async def prepare(self, job: Job, sandbox: Sandbox | None) -> dict[str, Any]:
        assert sandbox is not None  # the tool needs one
        table = base64.b64encode(Row.of(job).table().encode()).decode()
        await sandbox.act("write", {"path": TABLE, "data": table}, timeout=30)
        return {"asked": []}

    async def grade(self, job: Job) -> dict[str, Any]:
        row = Row.of(job)
        called = row.key in job.metadata["asked"]
        said = job.run_output["answer"].strip() == row.value
        return {"reward": 0.5 * called + 0.5 * said, "resolved": called and said, "metrics": {"called": called}}


class Row(msgspec.Struct, frozen=True):
    """One instance. Raises ``TaskFault`` from :meth:`of` for a row that is none."""

    key: Annotated[str, msgspec.Meta(pattern=r"^[0-9]{3}$(?!\n)")]
    value: Annotated[str, msgspec.Meta(pattern=r"^[A-H]{3}$(?!\n)")]

    @classmethod
    def of(cls, job: Job) -> Row:
        try:
            return msgspec.convert(job.instance, cls)
        except msgspec.ValidationError as error:
            raise TaskFault(f"the row is no lookup: {error}", code="bad_row") from error

    def table(self) -> str:
        """The file: this key's line among those of other keys, the same for every rollout of the row."""
        chance = random.Random(self.key + self.value)
        lines = {random_key(chance): random_value(chance) for _ in range(OTHERS)} | {self.key: self.value}
        return "".join(f"{key} {value}\n" for key, value in sorted(lines.items()))


def random_key(chance: random.Random) -> str:
    return "".join(chance.choices(DIGITS, k=3))


def random_value(chance: random.Random) -> str:
    return "".join(chance.choices(LETTERS, k=3))


def rows_by(chance: random.Random) -> Iterator[dict[str, Any]]:
    """Instances without end."""
    while True:
        yield {"key": random_key(chance), "value": random_value(chance)}


def rows(seed: int) -> Iterator[dict[str, Any]]:
    """The same ones for a seed."""
    return rows_by(random.Random(seed))
