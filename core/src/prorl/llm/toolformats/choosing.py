"""Which format a model writes: the one that was asked for, else the one that its chat template teaches."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from prorl.api.errors import TaskFault
from prorl.api.llm import ToolSchema
from prorl.llm.toolformats.base import TemplateRefusal, ToolFormat, function_form
from prorl.llm.toolformats.function_tag import FunctionTagFormat
from prorl.llm.toolformats.hermes import HermesFormat
from prorl.llm.toolformats.llama_json import LlamaJsonFormat
from prorl.llm.toolformats.pythonic import PythonicFormat
from prorl.llm.toolformats.qwen3_coder import Qwen3CoderFormat


class Renders(Protocol):
    """What is needed of :class:`prorl.llm.rendering.template.ChatTemplate`."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        now: datetime,
    ) -> str: ...


def formats() -> dict[str, ToolFormat]:
    """All of them by name, the most specific first: where a text matches several, the first one is meant."""
    known: list[ToolFormat] = [
        Qwen3CoderFormat(),
        FunctionTagFormat(),
        HermesFormat(),
        PythonicFormat(),
        LlamaJsonFormat(),
    ]
    return {each.name: each for each in known}


def choose(name: str | None, template: Renders) -> ToolFormat:
    """By name, else by what the template teaches, else Hermes. Raises ``TaskFault`` (code ``rendering``) for an unknown
    name."""
    known = formats()
    if name is not None:
        if name not in known:
            raise TaskFault(
                f"there is no tool format {name!r}; the formats are {', '.join(sorted(known))}", code="rendering"
            )
        return known[name]
    text = taught_by(template)
    return next((each for each in known.values() if each.matches(text)), known[HermesFormat.name])


def taught_by(template: Renders) -> str:
    """What the template says when it is given a tool; empty when it does not speak of tools."""
    tool = function_form(ToolSchema(name=f"t{secrets.token_hex(8)}", description="", parameters={"type": "object"}))
    try:
        text = template.render([{"role": "user", "content": "?"}], tools=[tool], now=_EPOCH)
    except TemplateRefusal:
        return ""
    return text if tool["function"]["name"] in text else ""


_EPOCH = datetime(2000, 1, 1)  # noqa: DTZ001 - only to see how a template behaves
