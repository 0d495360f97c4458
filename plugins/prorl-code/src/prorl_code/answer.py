"""The program that a text gives: its last fenced block, outside any thinking."""

from __future__ import annotations

import re

FENCE = re.compile(
    r"^[ \t]*(?P<fence>`{3,}|~{3,})[ \t]*[\w+.#-]*[^\n`]*\n(?P<code>.*?)^[ \t]*(?P=fence)[`~]*[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
THOUGHT = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL)
THOUGHT_END = re.compile(r"\A.*</think(?:ing)?>", re.DOTALL)


def last_block(text: str) -> str | None:
    """``None`` when there is none that is closed and not empty."""
    text = THOUGHT_END.sub("", THOUGHT.sub("", text))
    blocks = [match["code"] for match in FENCE.finditer(text) if match["code"].strip()]
    return blocks[-1] if blocks else None
