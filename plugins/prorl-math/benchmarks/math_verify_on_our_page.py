"""How math-verify grades what docs/grading.md grades: ``pip install 'math-verify[antlr4_13_2]'``, then run this file.

Every line is a verdict that differs; many are policy, where people differ. The last line counts them.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from math_verify import parse, verify

from prorl.grading.answers import without_thinking

PAGE = Path(__file__).parents[1] / "docs" / "grading.md"
SECONDS = 5


def verdicts() -> Iterator[tuple[str, str, bool]]:
    """Gold, answer, and whether the page calls it right."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            cells = [re.findall(r"`([^`]+)`", cell.replace("\\|", "|")) for cell in re.split(r"(?<!\\)\|", line)[1:4]]
            yield from (
                (cells[0][0], answer, right) for right, column in ((True, 1), (False, 2)) for answer in cells[column]
            )


def is_right(gold: str, answer: str) -> bool:
    text = without_thinking(answer) if r"\boxed" in answer else rf"\boxed{{{answer}}}"
    signal.alarm(SECONDS)
    try:
        read = [parse(one, parsing_timeout=None) for one in (rf"\boxed{{{gold}}}", text)]
        return bool(verify(*read, timeout_seconds=None))
    except TimeoutError:
        return False
    finally:
        signal.alarm(0)


def give_up(*_: object) -> None:
    raise TimeoutError


def main() -> None:
    signal.signal(signal.SIGALRM, give_up)
    different = [(gold, answer, right) for gold, answer, right in verdicts() if is_right(gold, answer) != right]
    for gold, answer, right in different:
        sys.stdout.write(f"{'misses' if right else 'accepts'}  {gold}  |  {answer}\n")
    missed = sum(right for *_, right in different)
    sys.stdout.write(f"{len(list(verdicts()))} verdicts: accepts {len(different) - missed}, misses {missed}\n")


if __name__ == "__main__":
    main()
