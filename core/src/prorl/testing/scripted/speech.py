"""What a dialect is to the scripted engine, and the engine to a dialect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from prorl.testing.httpd import Response
from prorl.testing.scripted.script import Asked, Played
from prorl.testing.scripted.voices import Voice


class Speaker(Protocol):
    """What a dialect may ask of :class:`prorl.testing.scripted.ScriptedEngine`."""

    model: str
    max_context: int
    in_flight: int
    abort_requests: list[str]
    weight_version: str
    incarnation: int
    voice: Voice


class Speech(Protocol):
    """An engine's HTTP. ``replies`` are the paths on which replies are asked for."""

    @property
    def replies(self) -> Sequence[str]: ...

    async def asked(self, engine: Speaker, path: str, body: dict[str, Any]) -> Asked | Response:
        """What is asked for, or why it is refused."""
        ...

    async def said(self, engine: Speaker, asked: Asked, played: Played) -> Response: ...

    async def other(self, engine: Speaker, path: str, body: dict[str, Any]) -> Response:
        """Everything that is no request for a reply."""
        ...
