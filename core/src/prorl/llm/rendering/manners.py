"""What a chat template can do by itself, found out by rendering a few words with it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from prorl.llm.rendering.template import ChatTemplate
from prorl.llm.toolformats import ToolFormat, taught_by
from prorl.llm.toolformats.base import TemplateRefusal

EPOCH = datetime(2000, 1, 1)  # noqa: DTZ001 - only to see how a template behaves
_TALK: list[Mapping[str, Any]] = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "?"}]


class Manners(msgspec.Struct, frozen=True):
    """What a template cannot do is written into the contents of messages, as ``tool_format`` has it.

    ``tools``: it describes tools, in that format. ``tool_role``: results of tools are messages of their own.
    ``calls``: it writes an assistant's calls, in that format, and ``several`` of one reply (Llama's stock templates
    take one only). ``thinking``: it looks for ``</think>`` in what an assistant said, so that tag alone ends thinking
    which a prompt had opened.
    """

    tool_format: ToolFormat
    tools: bool
    tool_role: bool
    calls: bool
    several: bool
    thinking: bool


def manners_of(template: ChatTemplate, tool_format: ToolFormat) -> Manners:
    taught = taught_by(template)
    tools = bool(taught) and tool_format.matches(taught)
    return Manners(
        tool_format=tool_format,
        tools=tools,
        tool_role=_knows_role(template, "tool"),
        calls=tools and _writes_calls(template, 1),
        several=tools and _writes_calls(template, 2),
        thinking="</think>" in template.source,
    )


def _knows_role(template: ChatTemplate, role: str) -> bool:
    """A template that takes any role's name as it comes was not made for this one."""
    body, other = secrets.token_hex(8), f"r{secrets.token_hex(8)}"
    try:
        known = template.render([*_TALK, {"role": role, "content": body}], now=EPOCH)
    except TemplateRefusal:
        return False
    if body not in known:
        return False
    try:
        unknown = template.render([*_TALK, {"role": other, "content": body}], now=EPOCH)
    except TemplateRefusal:
        return True
    return unknown.replace(other, role) != known


def _writes_calls(template: ChatTemplate, number: int) -> bool:
    name, word = secrets.token_hex(8), secrets.token_hex(8)
    for arguments in ({"a": word}, f'{{"a": "{word}"}}'):
        call = {"id": "call00000", "type": "function", "function": {"name": name, "arguments": arguments}}
        turn = {"role": "assistant", "content": "", "tool_calls": [call] * number}
        try:
            text = template.render([_TALK[0], turn, _TALK[0]], now=EPOCH)
        except TemplateRefusal:
            continue
        if text.count(name) >= number and text.count(word) >= number:
            return True
    return False
