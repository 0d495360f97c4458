"""How messages become tokens, as far as a job may choose."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec


class RenderingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rendering of one job's conversations.

    ``thinking`` switches a template's reasoning on or off (``None``: the template's own default); a template without
    such a switch refuses either. ``history`` says what happens where a template would rewrite earlier turns (drop
    their thinking): ``keep`` leaves the stream as it was sampled, ``segment`` renders the conversation anew, as the
    template has it, into a new segment. ``tool_format`` names the convention for tool calls (``None``: the one the
    template teaches). ``variables`` are further variables of the template; one that it does not know is refused.
    """

    thinking: bool | None = None
    history: Literal["keep", "segment"] = "keep"
    tool_format: Annotated[str, msgspec.Meta(min_length=1, max_length=100)] | None = None
    variables: dict[str, Any] = {}
