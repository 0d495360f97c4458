"""Questions for ``prorl demo``, and a policy that answers them by searching the offline index and calculating.

Written for this package; every fact that they need is in the corpus that comes with it.
"""

from __future__ import annotations

import json
from typing import Any

from prorl.api import DemoRecord


def _call(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


_PHOTON = "What is the energy of a photon with a wavelength of 500 nm, in electronvolts?"
_IRON = "At what temperature, in kelvin, does iron melt?"
_ORGAN = "Which of these is a metabolic process that breaks carbohydrates down?"

ROWS: tuple[dict[str, Any], ...] = (
    {"question": _IRON, "answer": "1811 K"},
    {"question": _PHOTON, "answer": "2.48 eV"},
    {"question": _ORGAN, "options": {"A": "Osmosis", "B": "Glycolysis", "C": "Meiosis"}, "answer": "B"},
    {
        "question": "Write the energy of a photon in terms of its wavelength $\\lambda$, $h$ and $c$.",
        "answer": "E = hc/\\lambda",
    },
)
_SCRIPTS = (
    (_call("search", query="melting point of iron"), "Iron melts at \\boxed{1538\\ ^\\circ\\mathrm{C}}."),
    (
        _call("search", query="Planck constant"),
        _call("execute_ipython_cell", code="6.62607015e-34 * 299792458 / 500e-9 / 1.602176634e-19"),
        "The energy is \\boxed{2.480\\ \\mathrm{eV}}.",
    ),
    (_call("search", query="metabolic process that breaks down carbohydrates"), "It is \\boxed{B}."),
    ("It is \\boxed{E = h\\lambda/c}.",),
)


def solve(row: dict[str, Any], turn: int) -> str | None:
    """Searches, calculates, answers. The last question is answered wrongly, to show what that looks like."""
    script = _SCRIPTS[ROWS.index(row)]
    return script[turn] if turn < len(script) else None


def record() -> DemoRecord:
    return DemoRecord(
        name="stem",
        domain="stem",
        rows=ROWS,
        script=solve,
        summary="four questions, answered by search and calculation; the last answer is wrong on purpose",
    )
