"""Earlier turns that a chat template would show in another way once something new was observed.

Stock Qwen3, for one, drops the thinking of earlier turns as soon as a user speaks. A stream cannot change, so a job
chooses (``rendering.history``): ``keep`` goes on with the stream as it was sampled, ``segment`` begins a new one with
the conversation as the template has it. Either is written into the trajectory's notes.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from prorl.api.llm import Message
from prorl.llm.rendering.scaffold import clean

KEPT = "history: the chat template would have rewritten earlier turns; the stream keeps them as they were sampled"
REWRITTEN = "history: the chat template rewrites earlier turns"


def sound(messages: Sequence[Message]) -> list[Message]:
    """As they can travel, whatever a tool or a handler has put into them."""
    return [
        msgspec.structs.replace(each, content=clean(each.content), name=each.name and clean(each.name))
        for each in messages
    ]


def joined(messages: Sequence[Message]) -> list[Message]:
    """A reply that was cut and went on is several messages of a chat, and one of the template's."""
    whole: list[Message] = []
    for message in messages:
        if message.role == "assistant" and whole and whole[-1].role == "assistant":
            before = whole.pop()
            message = msgspec.structs.replace(  # noqa: PLW2901
                before, content=before.content + message.content, tool_calls=before.tool_calls + message.tool_calls
            )
        whole.append(message)
    return whole
