"""The program that a text gives: its last fenced block, outside any thinking."""

from __future__ import annotations

import re

FENCE = re.compile(r"[ \t]*(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)")
THINKING = re.compile(r"<(?P<end>/?)think(?:ing)?>")


def last_block(text: str) -> str | None:
    """``None`` when there is none that is closed and not empty."""
    last: str | None = None
    fence, code = "", list[str]()
    for line in without_thinking(text).splitlines(keepends=True):
        match = FENCE.fullmatch(line.rstrip())
        if not fence:
            fence, code = (match["fence"] if match else ""), []
        elif match and match["fence"].startswith(fence) and not match["info"]:
            program = "".join(code)
            last, fence = (program if program.strip() else last), ""
        else:
            code.append(line)
    return last


def without_thinking(text: str) -> str:
    """A block that is never closed hides the rest; one that is only closed (its opening tag belonged to the prompt)
    hides what is before."""
    kept: list[str] = []
    start, hidden = 0, False
    for match in THINKING.finditer(text):
        if match["end"]:
            if not hidden:
                kept.clear()
            start, hidden = match.end(), False
        elif not hidden:
            kept.append(text[start : match.start()])
            hidden = True
    return "".join(kept) + ("" if hidden else text[start:])
