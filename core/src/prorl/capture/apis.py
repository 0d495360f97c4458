"""The APIs by what stands behind ``/proxy/{job_id}/v1/``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from prorl.capture.chat_completions import ChatCompletions
from prorl.capture.messages import Messages
from prorl.capture.responses import Responses
from prorl.capture.talk import Answer, Asked, Refusal


class Api(Protocol):
    """One API's forms. Bodies and events are bytes, ready to be sent; ``parse`` raises :class:`Refusal`."""

    name: str

    def parse(self, raw: bytes) -> Asked: ...

    def answer(self, asked: Asked, answer: Answer) -> bytes: ...

    def stream(self, asked: Asked, answer: Answer) -> Iterator[bytes]: ...

    def keep_alive(self) -> bytes: ...

    def refusal(self, refusal: Refusal) -> bytes: ...

    def late_refusal(self, refusal: Refusal) -> bytes:
        """For a stream that has begun: its status has gone out as 200."""
        ...


COUNT = "messages/count_tokens"  # Anthropic's alone
API_ROUTES: dict[str, Api] = {
    "chat/completions": ChatCompletions(),
    "responses": Responses(),
    "messages": Messages(),
}


def api_of(what: str) -> Api:
    """The API whose form an answer to this path has, errors too."""
    return API_ROUTES.get(what) or API_ROUTES["messages" if what.startswith("messages") else "chat/completions"]
