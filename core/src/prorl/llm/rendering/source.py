"""What rendered tokens are, and what made them."""

from __future__ import annotations

from typing import Literal

import msgspec

RenderedRole = Literal["prompt", "tool", "user"]


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What produced the tokens of a segment; goes into the trajectory."""

    model: str | None = None
    tokenizer: str | None = None
    template: str | None = None
