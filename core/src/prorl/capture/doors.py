"""The doors of all jobs, by job id. ``url`` and ``listen`` are set once the server knows where it stands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import quote

from prorl.api.errors import ConfigError
from prorl.api.llm import Chat
from prorl.capture.door import ENDED, Door
from prorl.capture.talk import Refusal

Close = Callable[[], Awaitable[None]]
Listen = Callable[[Door], Awaitable[tuple[Path, Close]]]


class Doors:
    def __init__(self) -> None:
        self.url = ""
        self.listen: Listen | None = None
        self._doors: dict[str, Door] = {}

    def open(self, job_id: str, chat: Callable[[str], Chat], *, max_tokens: int, max_calls: int | None) -> Door:
        """A job's door, there until it is closed. Raises ``ConfigError`` when nobody can reach it."""
        if not self.url:
            raise ConfigError("this server has no address, so no agent can reach it: run it by `prorl serve`")
        door = Door(
            job_id,
            f"{self.url}/proxy/{quote(job_id)}",
            chat=chat,
            max_tokens=max_tokens,
            max_calls=max_calls,
            listen=self.listen,
            closed=lambda: self._close(job_id),
        )
        self._doors[job_id] = door
        return door

    def find(self, job_id: str) -> Door:
        """Raises :class:`Refusal` when there is none, or no more."""
        door = self._doors.get(job_id)
        if door is None:
            raise Refusal("unknown", f"no agent is awaited here: {ENDED}, or its name is not {job_id[:200]!r}")
        return door

    def _close(self, job_id: str) -> None:
        self._doors.pop(job_id, None)
