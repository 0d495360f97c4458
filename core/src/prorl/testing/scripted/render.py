"""Messages as engines render them: by the model's own template over the whole conversation, and encoded at once."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from prorl.llm.rendering.template import ChatTemplate
from prorl.testing.scripted.speech import Speaker


async def render(engine: Speaker, body: dict[str, Any], *, generation_prompt: bool = True) -> list[int]:
    template = ChatTemplate(engine.voice.chat_template or "", variables=engine.voice.special_tokens)
    text = template.render(
        [_parsed(message) for message in body["messages"]],
        tools=body.get("tools"),
        now=datetime.now(UTC),
        generation_prompt=generation_prompt,
    )
    return await engine.voice.encode(text)


def _parsed(message: dict[str, Any]) -> dict[str, Any]:
    """Arguments travel as text, and reach templates as objects."""
    if "tool_calls" not in message:
        return message
    calls = [
        {"function": {**call["function"], "arguments": msgspec.json.decode(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}
