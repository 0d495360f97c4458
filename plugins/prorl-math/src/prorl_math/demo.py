"""Problems for ``prorl demo``, and a policy that solves them with the IPython tool.

Written for this package; easy enough that a small model sometimes answers one, worth a tool call all the same.
"""

from __future__ import annotations

import json
from typing import Any

from prorl.api import DemoRecord

# problem, answer, and the cell that a competent policy would run
_PROBLEMS: tuple[tuple[str, str, str], ...] = (
    (
        "How many positive divisors does 360 have?",
        "24",
        "n = 360\nsum(1 for d in range(1, n + 1) if n % d == 0)",
    ),
    (
        "What is the sum of the squares of the first ten positive integers?",
        "385",
        "sum(k * k for k in range(1, 11))",
    ),
    (
        "Find all real solutions of $x^2 - 5x + 6 = 0$.",
        "2, 3",
        "from sympy import solve, symbols\nx = symbols('x')\nsolve(x**2 - 5*x + 6, x)",
    ),
    (
        "Write $\\frac{1}{2} + \\frac{1}{3} + \\frac{1}{7}$ as a single fraction.",
        "\\frac{41}{42}",
        "from fractions import Fraction\nsum(Fraction(1, n) for n in (2, 3, 7))",
    ),
)

ROWS = tuple({"problem": problem, "answer": answer} for problem, answer, _ in _PROBLEMS)
_CELLS = {problem: code for problem, _, code in _PROBLEMS}


def solve(row: dict[str, Any], turn: int) -> str | None:
    """First a cell, then the answer. The last problem is answered wrongly, to show what that looks like."""
    if turn == 0:
        call = {"name": "execute_ipython_cell", "arguments": {"code": _CELLS[row["problem"]]}}
        return f"I compute it.\n<tool_call>\n{json.dumps(call)}\n</tool_call>"
    if turn == 1:
        answer = "\\frac{5}{6}" if row == ROWS[-1] else row["answer"]
        return f"The answer is $\\boxed{{{answer}}}$."
    return None


def record() -> DemoRecord:
    return DemoRecord(
        name="math",
        domain="math",
        rows=ROWS,
        script=solve,
        summary="four problems, solved with IPython; the last answer is wrong on purpose",
    )
