"""The answer that a text gives: its last boxed expression, outside any thinking.

Boxes with nothing but commas, "and", "or" or blanks between them are one answer with several parts: ``\\boxed{1} and
\\boxed{2}`` answers "1, 2", and a model gains nothing by hedging. Otherwise the last box is the final word.
"""

from __future__ import annotations

import re

BOX = re.compile(r"\\(?:boxed|fbox)\s*(?=\{)")
BARE_BOX = re.compile(r"\\boxed\s+([^\s{}$\\]+)")
BETWEEN = re.compile(r"(?:[\s,;$]|\\[,;! ()\[\]]|\\q?quad\b|\\text\s*\{\s*(?:and|or)\s*\}|\b(?:and|or)\b)*")
THOUGHT = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL)
THOUGHT_END = re.compile(r"\A.*</think(?:ing)?>", re.DOTALL)


def final_answer(text: str) -> str | None:
    """What ``text`` answers, without the box; ``None`` when there is no complete box in it."""
    text = without_thinking(text)
    boxes = find_boxes(text)
    if not boxes:
        bare = BARE_BOX.findall(text)
        return bare[-1] if bare else None
    parts = [boxes[-1][2]]
    for (_, end, content), (start, _, _) in zip(boxes[-2::-1], boxes[:0:-1], strict=True):
        if not BETWEEN.fullmatch(text, end, start):
            break
        parts.insert(0, content)
    return ", ".join(dict.fromkeys(part.strip() for part in parts))


def without_thinking(text: str) -> str:
    """``text`` without ``<think>`` blocks. A block that is never closed hides the rest; one that is only closed (its
    opening tag belonged to the prompt) hides what is before."""
    return THOUGHT_END.sub("", THOUGHT.sub("", text))


def find_boxes(text: str) -> list[tuple[int, int, str]]:
    """Outermost boxes as ``(start, end, content)``; one that is never closed is none. A box in a box is unwrapped."""
    boxes = []
    position = 0
    while match := BOX.search(text, position):
        end = closing_brace(text, match.end())
        if end is None:
            position = match.end()
            continue
        content = text[match.end() + 1 : end]
        inner = find_boxes(content)
        boxes.append((match.start(), end + 1, inner[-1][2] if inner else content))
        position = end + 1
    return boxes


def closing_brace(text: str, opening: int) -> int | None:
    """Where the brace at ``opening`` closes; escaped braces don't count."""
    depth = 0
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, opening):
        if match[0] == "{":
            depth += 1
        elif match[0] == "}":
            depth -= 1
            if depth == 0:
                return match.start()
    return None
